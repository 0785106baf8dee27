"""The clients of a study in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sordino import data as datasets
from sordino.base.entropy import Entropy
from sordino.clients.setup import SharedSetup
from sordino.mechanisms import Bounded
from sordino.mechanisms.shared import SharedNoise
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.regimes.synchronous.sums import weights
from sordino.training.client import Client, Examples
from sordino.training.dpsgd import PlainClient, PrivateClient
from sordino.training.local import LocalClient, LocalWork, NoisyModelClient
from sordino.training.shared import Part, SummedClient, SummedLocalClient


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Makes:
    """Makes clients.

    Attributes:
        study: calibrated.
        setup: the model's kernels, and sizes.
        noise: the mechanism; None without privacy.
        entropy: where batches and noise are drawn from.
        units: of the clients, in the ledger.
        sums: what the grids of sums follow from, where clients share the noise.
    """

    study: SynchronousStudy
    setup: SharedSetup
    noise: Bounded | None
    entropy: Entropy
    units: Sequence[str]
    sums: SharedNoise | None = None

    def all(self, parts: list[datasets.Dataset]) -> list[Client]:
        """A client for each part; ``parts`` is emptied on the way."""
        clients: list[Client] = []
        parts.reverse()
        while parts:
            clients.append(self._client(len(clients), self.setup.examples(parts.pop())))
        return clients

    def _client(self, i: int, examples: Examples) -> Client:
        rate, method = self.study.privacy.sampling_rate, self.study.method
        if self.noise is not None and isinstance(method, ClientLevel):
            return self._whole(i, examples, self.noise, method)
        told: dict[str, Any] = {
            "index": i,
            "unit": self.units[i],
            "examples": examples,
            "sampling_rate": rate,
            "kernels": self.setup.kernels,
            "entropy": self.entropy,
        }
        if self.noise is not None and self.sums is not None:
            part = self._part(i, self.sums)
            return SummedClient(**told, mechanism=self.noise, part=part)
        told |= {"learning_rate": method.learning_rate, "optimizer": method.optimizer}
        if self.noise is None:
            return PlainClient(**told)
        own = self.study.privacy.noise_multipliers
        noise = self.noise if own is None else self.noise.scaled(self.noise.clip, own[i])
        return PrivateClient(**told, mechanism=noise, realised=method.realised)

    def _whole(self, i: int, examples: Examples, noise: Bounded, method: ClientLevel) -> Client:
        """Where whole clients are protected."""
        privacy = self.study.privacy
        work = LocalWork(
            index=i,
            examples=examples,
            learning_rate=method.learning_rate,
            gradient_clip=privacy.clip if self.study.form == "paper" else None,
            batch=method.batch,
            proximal=method.proximal,
            optimizer=method.optimizer,
            kernels=self.setup.kernels,
            entropy=self.entropy,
        )
        told = {field.name: getattr(work, field.name) for field in fields(work)}
        told["unit"] = self.units[i]
        if not method.aggregated:
            return NoisyModelClient(**told, noise_multiplier=noise.noise_multiplier)
        told |= {"mechanism": noise, "sampling_rate": privacy.sampling_rate}
        if self.sums is None:
            return LocalClient(**told)
        watched = self.setup.mine is not None  # in one process nobody is
        return SummedLocalClient(**told, part=self._part(i, self.sums), watched=watched)

    def _part(self, i: int, sums: SharedNoise) -> Part:
        weight = weights(self.study, self.setup.sizes)[i]
        return Part(client=i, rule=sums, weight=weight, entropy=self.entropy)
