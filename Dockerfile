# One image for the three roles; the last word of the command says which:
#
#   docker build --tag sordino .
#   docker run --rm --volume "$PWD:/federation" sordino run study.toml
#   docker run --rm --volume "$PWD/kits/server:/federation" --publish 8765:8765 sordino serve .
#   docker run --rm --volume "$PWD/site:/federation" sordino join kit --data rows.csv
#
# The user in it has the number 10001 and no rights: the folder that is mounted must be writable for
# it (or say --user "$(id -u):$(id -g)"). With --read-only also give --tmpfs /tmp. For a server and
# sites as services see deploy/compose.yaml.

FROM python:3.11-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/sordino
# The CPU build of PyTorch; for a GPU leave --index-url out of this line.
RUN /opt/sordino/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch
RUN /opt/sordino/bin/pip install --no-cache-dir ".[network,edge]"

FROM python:3.11-slim
COPY --from=build /opt/sordino /opt/sordino
RUN useradd --uid 10001 --create-home sordino && mkdir /federation && chown sordino /federation
# The key of fingerprints outlives the container, beside the data; it is not for others. So does
# compiled code. Nothing else is written outside of /federation and /tmp: the root may be read-only.
ENV PATH=/opt/sordino/bin:$PATH OMP_NUM_THREADS=1 SORDINO_DATA_KEY=/federation/.sordino.key \
    SORDINO_COMPILED=/federation/.compiled MPLCONFIGDIR=/tmp
USER sordino
WORKDIR /federation
ENTRYPOINT ["sordino"]
CMD ["--help"]
