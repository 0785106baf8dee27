"""``sordino network``, ``serve`` and ``join``: a study between real sites."""

from __future__ import annotations

import datetime as dt
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sordino.base.errors import CutShort, SordinoError, StudyError
from sordino.base.logs import Format, Level, Lines, log_to
from sordino.cli import say
from sordino.cli.run import AsJson, Quiet, Set, StudyFile

if TYPE_CHECKING:
    from sordino.core.run.session import Going, Outcome
    from sordino.network.status import Listeners
    from sordino.network.transport import OpensHub


class _Network(TyperGroup):
    """Commands of the group, and of packages beside this one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Say what to install for a command of a package that is not."""
        if args[:1] and args[0].startswith("nvflare-") and self.get_command(ctx, args[0]) is None:
            raise StudyError(
                f"sordino network {args[0]}: the package with this command is not installed: pip "
                "install 'sordino[nvflare]'"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Network,
    help="A study between real sites: try it, provision it, watch it.",
    no_args_is_help=True,
)

Kit = Annotated[Path, typer.Argument(help="The folder of a kit, as `network provision` made it.")]
Authority = Annotated[Path, typer.Argument(help="The folder of the authority.")]
Name = Annotated[str, typer.Argument(help="A site, server, or broker.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where the server (with MQTT, the broker) is now, if not where it was agreed: for "
        "serve, the port to listen on.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The run folder, made or resumed. Default: the folder run in the kit."),
]
LogFormat = Annotated[
    Format | None,
    typer.Option(
        help="Write log lines in place of progress, with nothing that depends on private rows."
    ),
]
LogLevel = Annotated[Level, typer.Option(help="The lowest level of messages that are shown.")]


def serve(
    kits: Annotated[
        list[Path],
        typer.Argument(
            metavar="KIT...",
            help="Folders of kits, as `network provision` made them; several share one port.",
        ),
    ],
    out: Out = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Default: every address of this machine.")
    ] = "",
    address: Address = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIT=]FILE",
            help="Public rows that models are measured on (CSV, Parquet, npz).",
        ),
    ] = None,
    page: Annotated[
        int | None, typer.Option(help="Show the status on this port of the loopback; 0: any port.")
    ] = None,
    durable: Annotated[
        bool,
        typer.Option("--durable", help="Wait for the disk at each input: outlives power cuts."),
    ] = False,
    scripted: Annotated[
        bool, typer.Option("--scripted", help="Take answers in the order of a simulation.")
    ] = False,
    answer_within: Annotated[
        float | None,
        typer.Option(help="Seconds in which a connected site answers. Default: as agreed."),
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = "info",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Serve studies to their sites until all have ended. Started again, they go on."""
    from sordino.live.federation import Page
    from sordino.network import server
    from sordino.network.kit import RUN

    runs = {kit: out or kit / RUN for kit in kits}
    several, ends = len(runs) > 1, list[int]()
    if several and out is not None:
        raise StudyError("--out: with several kits each run folder is the folder run in the kit")
    tests = _tests(kits, test or ())
    ending = threading.Lock()
    form = log_format or ("text" if several else None)
    with ExitStack() as stack:
        listeners = {k: stack.enter_context(_listeners(k, form, log_level, quiet)) for k in runs}
        if several and form is not None:
            say.log.set(log_to(say.people, Lines(form), log_level))
        if page is not None:
            names = {_names(kit)[0]: run for kit, run in runs.items()}
            pages = stack.enter_context(closing(Page(names, page)))
            listeners[kits[0]].log.info(f"status: {pages.address}")

        def play(kit: Path, way: OpensHub) -> None:
            log = None if form is None else listeners[kit].log
            say.log.set(log)
            try:
                outcome = server.serve(
                    kit,
                    listeners[kit],
                    way=way,
                    out=runs[kit],
                    test=tests.get(kit),
                    durable=durable,
                    scripted=scripted,
                    within=answer_within,
                )
                with ending:
                    _conclude(outcome, as_json)
            except Exception as error:
                if not several:
                    raise
                ends.append(say.failed(error))

        server.serve_all(list(runs), play, host=host, address=address)
    if ends:
        raise typer.Exit(min(ends))


def _tests(kits: Sequence[Path], given: Sequence[str]) -> dict[Path, Path]:
    """Return the file of ``--test`` of each kit that has one."""
    if len(kits) == 1 and len(given) == 1:
        return {kits[0]: Path(given[0])}
    found = {Path(kit): Path(file) for kit, _, file in (each.partition("=") for each in given)}
    if unknown := [str(kit) for kit in found if kit not in kits]:
        raise StudyError(
            f"--test: {unknown[0]} is none of the kits. Of several, name the one whose rows these "
            "are: --test KIT=FILE"
        )
    return found


def join(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This site's own rows (CSV, Parquet, npz).")],
    ledger: Annotated[
        Path | None,
        typer.Option(help="Folder of the ledger of this data. Default: a ledger of this run."),
    ] = None,
    epsilon_limit: Annotated[
        float | None, typer.Option(help="Epsilon that this site spends at most, whatever is asked.")
    ] = None,
    out: Out = None,
    address: Address = None,
    rehearsal: Annotated[
        bool,
        typer.Option(
            "--rehearsal", help="Join though the noise is known to everybody: for public rows only."
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be released, and connect to nobody.")
    ] = False,
    log_format: LogFormat = None,
    log_level: LogLevel = "info",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take part in a study with one's own data. Started again, it goes on."""
    from sordino.network import site

    options = site.JoinOptions(
        kit=kit,
        data=data,
        ledger=ledger,
        limit=epsilon_limit,
        out=out,
        rehearsal=rehearsal,
        address=address,
    )
    if plan:
        from sordino.data.notices import noticed

        with noticed(say.people):
            for line in site.promised(options):
                say.result(line)
        return
    with _listeners(kit, log_format, log_level, quiet) as listeners:
        outcome = site.join(options, listeners)
    _conclude(outcome, as_json)


@app.command()
def demo(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="The folder to create.")] = Path("federation"),
    change: Set = None,
    scripted: Annotated[
        bool,
        typer.Option(
            "--scripted",
            help="Give the same model as a simulation: noise from the seed. No privacy.",
        ),
    ] = False,
    transport: Annotated[
        str,
        typer.Option(
            metavar="[websocket|mqtt]",
            help="How frames travel: to the server itself, or by a broker.",
        ),
    ] = "websocket",
    as_json: AsJson = False,
) -> None:
    """Run a study between processes of this machine, over mutual TLS."""
    from sordino.core import study as studies
    from sordino.network import demo as demos
    from sordino.network import transport as transports

    read, travels = studies.read(study, change or ()), transports.of(transport)
    laid = demos.lay_out(read, out, scripted=scripted, transport=transport)
    say.people(f"{len(laid.sites)} sites and a server, each a process of its own, in {out}")
    if failed := travels.play(laid, say.people, scripted=scripted):
        raise StudyError(f"{failed} of the processes failed; their output is in {out / 'logs'}")
    say.result(f"Every site has its own run folder: {laid.sites[0][0] / 'run'} and so on")
    if as_json:
        say.machine(
            {"server": str(laid.server / "run"), "sites": [str(s / "run") for s, _ in laid.sites]}
        )


@app.command()
def provision(
    federation: Annotated[Path, typer.Argument(help="FEDERATION.toml: who takes part in what.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")] = Path("kits"),
    authority: Annotated[
        Path | None,
        typer.Option(
            help="The folder of an authority that has made kits before: those who have its "
            "certificates keep them. Default: a new authority."
        ),
    ] = None,
) -> None:
    """Make a start-up kit for the server and for each site."""
    from sordino.network import kit

    agreement = kit.provision(federation, out, dt.datetime.now(dt.UTC), authority)
    without = [name for name in (kit.SERVER, *agreement.names) if not [*(out / name).glob("*.key")]]
    say.people(
        f"Kits for the server and {len(agreement.names)} sites are in {out}. A kit with a private "
        f"key is for its site alone. Keep {authority or out / kit.AUTHORITY} where no network "
        "reaches it"
    )
    if without:
        say.people(
            f"No new keys for {', '.join(without)}: certificate and key (server.pem and "
            "server.key, or site.pem and site.key) of their earlier kits go into these, by their "
            "own hands. Until then these kits hold no secret"
        )
    if (disk := kit.Agreed(out / kit.SERVER).network.disk()) is not None:
        say.people(f"{disk}")


@app.command()
def renew(
    authority: Authority,
    name: Name,
    out: Annotated[Path, typer.Option(help="The kit to write the new certificate into.")],
    host: Annotated[
        str, typer.Option(help="Of the server or broker, if it is not the agreed one any more.")
    ] = "",
) -> None:
    """Make a new certificate for the server or a site."""
    from sordino.network import kit

    kit.renew(authority, name, out, dt.datetime.now(dt.UTC), host)
    say.people(f"A new certificate of {name} is in {out}. The old one holds until it ends")


@app.command()
def revoke(authority: Authority, name: Name) -> None:
    """Revoke all certificates so far of a site, the server or the broker."""
    from sordino.network import kit

    path = kit.revoke(authority, name, dt.datetime.now(dt.UTC))
    admits = kit.admits(kit.read_agreement(authority / kit.AGREEMENT))
    if name == admits:
        say.people(
            f"Send {path} to every site, for its kit (beside authority.pem)"
            + (", and copy it into the server's kit" if name == kit.BROKER else "")
            + f": each refuses the old certificate from its next connection on. Make a new one of "
            f"the {name} with `sordino network renew`"
        )
    elif admits == kit.BROKER:
        say.people(f"Copy {path} into the broker's kit, and restart the broker: it reads it then")
    else:
        say.people(f"Copy {path} into the server's kit: a running server reads it at once")


@app.command()
def status(
    run: Annotated[Path, typer.Argument(help="The run folder of a server.")],
    as_json: AsJson = False,
) -> None:
    """Show how a federation stands."""
    from sordino.live import federation as states

    state = states.read(run)
    say.table(
        f"{state.name}: {state.number} of {state.planned}, after {state.seconds:.0f} s"
        + ("" if state.ended is None else f". Ended: {state.ended}")
        + ("" if state.waiting is None else f"; {state.waiting}"),
        states.HEAD,
        states.rows(state),
    )
    if silent := states.silence(run, state):
        say.alarm(silent)
    for why, times in state.strangers.items():
        say.result(f"refused connection: {why} ({times})")
    if as_json:
        say.machine(state)


@app.command()
def proof(
    run: Annotated[
        Path, typer.Argument(help="A site's run folder, or a folder with its proof.json.")
    ],
    authority: Annotated[Path, typer.Option(help="The federation's authority.pem.")],
    ledger: Annotated[
        Path | None, typer.Option(help="The site's ledger file. Default: that of the folder.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="The run folder of the server, which keeps the proof for `sordino record`.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what a site has signed against its ledger."""
    from sordino.base.errors import printable
    from sordino.core.records import known
    from sordino.network import proof as proofs

    statement = proofs.verify(run, authority, ledger)
    epsilon = known(statement.epsilon)
    sent = "" if statement.answers is None else f"sent {statement.answers} answers and "
    at = f" at delta {known(statement.delta)} ({statement.accountant})"
    told = (
        f"The proof holds: site {statement.site} {sent}spent epsilon {say.bound(epsilon)}"
        f"{'' if epsilon is None else at} in run {statement.run}; its ledger had "
        f"{statement.entries} entries then. The agreement's digest is {statement.agreement}"
    )
    say.result(printable(told, 1000))
    if keep is not None:
        say.people(f"Kept in {proofs.save(run, statement, keep)}")
    if as_json:
        say.machine(statement)


def _names(kit: Path) -> tuple[str, str]:
    """Return the study and the site of a kit, as far as it can be read; a server is no site."""
    from sordino.network import certificates
    from sordino.network.kit import AGREEMENT, read_agreement

    study = site = ""
    with suppress(SordinoError):
        study = read_agreement(kit / AGREEMENT).name
        site = certificates.common_name(certificates.read_certificate(kit, "site.pem"))
    return study, site


@contextmanager
def _listeners(kit: Path, form: Format | None, level: Level, quiet: bool) -> Iterator[Listeners]:
    """Progress, messages and notices on a console; or log lines alone, errors of the command
    included. That there is a notice depends on private rows, so that no line says it.
    """
    from sordino.core.records import known
    from sordino.data.notices import noticed
    from sordino.live.console import Running
    from sordino.network.status import Listeners

    if form is None:
        with noticed(say.people), closing(Running(quiet)) as progress:
            log = log_to(say.people, level=level)
            yield Listeners(row=progress.row, begin=progress.begin, log=log)
        return
    log = log_to(say.people, Lines(form, *_names(kit)), level)
    say.log.set(log)
    warnings.simplefilter("ignore")  # a library's may quote rows

    def begin(going: Going) -> None:
        log.info(f"run {known(going.about.run)} in {going.folder}")
        for warning in known(going.about.warnings) or ():
            log.warning(warning)

    yield Listeners(row=lambda row: None, begin=begin, log=log)


def _conclude(outcome: Outcome, as_json: bool) -> None:
    from sordino.cli.run import concluded
    from sordino.network.frames import cut_short

    log = say.log.get()
    concluded(outcome, told=log is None)  # what rows have spent, in a ledger of the data
    if as_json:
        say.machine(outcome)
    if cut_short(outcome.why):
        raise CutShort(outcome.why)
    if log is not None:
        log.info(f"ended: {outcome.why}")
