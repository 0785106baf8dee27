"""Mechanisms by name: the ``[privacy.mechanism]`` table of a study, checked and made.

========  ==============================================
gaussian  the same noise on every number
k-norm    noise that is priced without any delta
haar      noise on Haar wavelet coefficients
========  ==============================================

A study names a registered kind, or a class in a module of its own as ``package.module:Class``;
docs/own-mechanism.md shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.registry import AtLeastOne, Registry, Section, foreign
from sordino.mechanisms.correlated import CorrelatedGaussian, Correlation
from sordino.mechanisms.gaussian import COUNT_SHARE, Bounded, CountedGaussian, Gaussian, Measuring
from sordino.privacy import event

if TYPE_CHECKING:  # whoever only prices a release does not wait for torch
    from sordino.mechanisms.haar.basis import Basis, Groups
    from sordino.mechanisms.knorm import ExponentialNorm, KNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRequest:
    """The parameters that a study asks a mechanism for, all of them public.

    Attributes:
        unit: "sample": the contributions are gradients of examples; "client": updates of clients.
        clip: C (or S), L2 bound of a contribution in the mechanism's norm.
        noise_multiplier: sigma.
        parameters: how many numbers each parameter of the model has, in the vector's order.
        energies: of a map from rows (n, d) to (n, groups), its mean over public examples' gradients
            of length one, (groups,); None where a study has no public examples.
        counted: whether a noisy count of clipped contributions is wanted beside the sum.
        count_deviation: standard deviation that its noise must have, in contributions; None leaves
            it to the mechanism.
        update_bound: eta tau C, how far a client can get by tau steps of gradients of length C;
            None for unit "sample".
        largest: the largest weight of a client, in examples; 1 where all weigh the same.
        correlation: the matrix of noise that is correlated from step to step; None where it is not.
    """

    unit: str
    clip: float
    noise_multiplier: float
    parameters: tuple[int, ...]
    energies: Callable[[Callable[[Any], Any]], Sequence[float]] | None = None
    counted: bool = False
    count_deviation: float | None = None
    update_bound: float | None = None
    largest: float = 1.0
    correlation: Correlation | None = None

    @property
    def dimension(self) -> int:
        """d."""
        return sum(self.parameters)


class Noise(Section):
    """One mechanism, and the ``[privacy.mechanism]`` table of a study that asks for it.

    A subclass adds its constants as fields. ``form`` is "paper" where it is a paper's literal
    algorithm, whose :meth:`Bounded.event` then differs from what is asked for.

    Attributes:
        form: "sound", or "paper" for what a paper prints, which is not private
    """

    counts: ClassVar[bool] = False  # whether it can release a count beside the sum
    simulated: ClassVar[bool] = (
        False  # whether its price rests on an ideal sampler that no computer has
    )
    sized: ClassVar[bool] = (
        False  # whether its price depends on d, which a study learns from its data and model
    )

    kind: str
    form: Literal["sound", "paper"] = "sound"

    @property
    def learns(self) -> bool:
        """Tell whether its shape follows earlier noisy releases."""
        return False

    def refused(self, unit: str, public: bool) -> str | None:
        """Why it cannot serve this unit, or lacks public examples; None if it can."""
        return None

    def for_dimension(self, dimension: int) -> Self:
        """The same for sums of ``dimension`` numbers."""
        return self

    def event(self, noise_multiplier: float) -> event.Event:
        """Return the event of one release at this sigma, before sampling: noise is calibrated by
        it.

        In a paper's form, what the paper claims.

        A mechanism that is no Gaussian of multiplier sigma says here what it is.
        """
        return event.Gaussian(noise_multiplier=noise_multiplier)

    @model_validator(mode="after")
    def _states_an_event(self) -> Self:
        """Look at the event of one of somebody's own, before noise is calibrated by it."""
        if not self.sized:
            told: object = self.event(1.0)
            if not isinstance(told, event.Event):
                raise MECHANISMS.wrong(self, "event", told, "a privacy event")
        return self

    def make(self, asked: NoiseRequest) -> Bounded:
        """The mechanism."""
        raise NotImplementedError

    def made(self, asked: NoiseRequest) -> Bounded:
        """Return what :meth:`make` gives, if it is a mechanism.

        Raises:
            StudyError: if it lacks something, or its event is none.
        """
        given: object = self.make(asked)
        protocols = (Bounded, Measuring) if getattr(given, "measure", None) == "own" else (Bounded,)
        members = [name for each in protocols for name in vars(each) if not name.startswith("_")]
        if missing := [name for name in members if not hasattr(given, name)]:
            raise MECHANISMS.wrong(
                self, "make", given, f"a mechanism, and this has no {', no '.join(missing)}"
            )
        found: Bounded = given  # type: ignore[assignment]
        told: object = found.event()
        if not isinstance(told, event.Event):
            raise MECHANISMS.wrong(self, "the event of what make gave", told, "a privacy event")
        if foreign(found):
            self._tried(found, asked.dimension)
        return found

    def _tried(self, made: Bounded, dimension: int) -> None:
        """Try somebody's own on a row of ones: later, a row on which it fails adds nothing, and
        nobody is told.
        """
        import torch

        row = torch.ones(1, dimension)
        told: dict[str, tuple[object, tuple[int, ...]]]
        told = {"bounded": (made.bounded(row[0])[0], (dimension,))}
        if made.measure == "own" and isinstance(made, Measuring):
            told["norms"] = made.norms(row), (1,)
        for call, (given, shape) in told.items():
            if not (isinstance(given, torch.Tensor) and given.shape == shape):
                wanted = f"a tensor of shape {shape} for a row of {dimension} numbers"
                raise MECHANISMS.wrong(self, call, given, wanted)
        again = made.scaled(made.clip, made.noise_multiplier)
        if len({behaviour(each, dimension) for each in (made, made, again)}) > 1:
            raise MECHANISMS.wrong(
                self,
                "the mechanism of make",
                "something else when it was asked again",
                "the same for the same numbers: by a state, or numbers that it draws, a run that "
                "goes on would put the same noise on a sum in another way",
            )


def behaviour(made: Bounded, dimension: int) -> bytes:
    """Return what a mechanism makes of two rows, and of sums with made-up noise."""
    import torch

    parts = []
    for row in (torch.ones(dimension), torch.full((dimension,), 0.5)):
        noisy, _ = made.release_counted(row.double(), 0.0, Seeded(0).at("made up"))
        parts += [made.bounded(row)[0], noisy]
        if made.measure == "own" and isinstance(made, Measuring):
            parts.append(made.norms(row.unsqueeze(0)))
    return b"".join(part.detach().cpu().double().numpy().tobytes() for part in parts)


MECHANISMS = Registry(
    base=Noise,
    noun="mechanism",
    place="privacy.mechanism",
    page="docs/own-mechanism.md",
    needs=("make",),
)
register, known, imported = MECHANISMS.register, MECHANISMS.known, MECHANISMS.imported


@register
class GaussianNoise(Noise):
    """The same noise on every number; clipped as a whole or per layer.

    ``clipping`` bounds the whole gradient, or each layer by itself (C over the root of their
    number).

    Attributes:
        form: Gaussian noise has a sound form only
        clipping: what is clipped: the whole gradient, or each layer by itself
    """

    counts: ClassVar[bool] = True

    kind: Literal["gaussian"] = "gaussian"
    form: Literal["sound"] = "sound"
    clipping: Literal["flat", "per-layer"] = "flat"

    def refused(self, unit: str, public: bool) -> str | None:
        """Layers are bounded in gradients only."""
        if self.clipping == "per-layer" and unit == "client":
            return (
                "privacy.mechanism.clipping 'per-layer' is for gradients of single examples; "
                "unit 'client' has one bound"
            )
        return None

    def make(self, asked: NoiseRequest) -> Bounded:
        """A Gaussian, with a count beside it if one is wanted."""
        measure: Literal["flat", "layers"] = "layers" if self.clipping == "per-layer" else "flat"
        sigma, deviation = asked.noise_multiplier, asked.count_deviation
        if asked.correlation is not None:
            return CorrelatedGaussian(
                clip=asked.clip,
                noise_multiplier=sigma,
                measure=measure,
                correlation=asked.correlation,
                share=COUNT_SHARE if asked.counted else 0.0,
            )
        if not asked.counted:
            return Gaussian(clip=asked.clip, noise_multiplier=sigma, measure=measure)
        share = COUNT_SHARE if deviation is None else (sigma / (2.0 * deviation)) ** 2
        if share >= 1.0:
            raise StudyError(
                f"noise of {deviation:g} clients on the count (method.count_noise) leaves nothing "
                f"of noise_multiplier = {sigma:g} for the updates; it must be above {sigma / 2.0:g}"
            )
        return CountedGaussian(
            clip=asked.clip, noise_multiplier=sigma, share=share, measure=measure
        )


LOOKS = "privacy.mechanism.weights 'optimal' needs public examples to look at: set data.validation"


@register
class HaarNoise(Noise):
    """Noise on Haar wavelet coefficients (Ranaweera et al. 2024).

    ``blocks``: one transform over all parameters, or one for each. ``weights``: how clip and noise
    are spread over levels; "optimal" looks at ``data.validation``, which is public, "learned" at
    earlier noisy releases (with plain SGD steps). ``exponent``: 1 for the least noise, 0 for equal
    weights. ``clipping``: "per-level" bounds every level by itself, as the paper's section 4.3 has
    it; left out, all coefficients together. ``form = "paper"`` is the paper's literal algorithm,
    with its ``discount`` on sigma: NOT private, and booked at what it is. It has W of the paper for
    its noise; ``weights = "paper"`` then says that a level is clipped to C / W, where "per-level"
    alone clips it to C.

    Attributes:
        blocks: one transform over all parameters, or one for each layer
        weights: how clip and noise are spread over levels; "optimal" looks at data.validation,
            "learned" at earlier noisy releases
        exponent: of the weights: 1 for the least total noise, 0 for equal weights
        clipping: "per-level" bounds every level of coefficients by itself; all of them together
            unless given
        discount: whether the paper's form has its discount on sigma
    """

    kind: Literal["haar"] = "haar"
    blocks: Literal["flat", "layers"] = "flat"
    weights: Literal["uniform", "paper", "optimal", "learned"] = "uniform"
    exponent: float = Field(0.5, ge=0, le=1)
    clipping: Literal["per-level"] | None = None
    discount: bool = True

    @property
    def learns(self) -> bool:
        """With learned weights."""
        return self.weights == "learned" and self.form == "sound"

    def refused(self, unit: str, public: bool) -> str | None:
        """Energies come from public examples, and the paper's form has weights of its own."""
        if self.form == "sound":
            lacking = self.weights == "optimal" and not public
            return f"{LOOKS}, or choose other weights" if lacking else None
        if self.weights in ("optimal", "learned"):
            return (
                f"privacy.mechanism.weights '{self.weights}' is not in the paper, whose form has "
                "the weights W of its own: leave weights out, or choose form 'sound'"
            )
        if self.clipping == "per-level" and unit == "client":
            return (
                "privacy.mechanism.clipping 'per-level' in the paper's form is for unit 'sample': "
                "algorithm 2 clips gradients inside a client, and no coefficients. Leave clipping "
                "out, or choose form 'sound'"
            )
        if self.weights == "paper" and self.clipping is None:
            return (
                "privacy.mechanism.weights 'paper' in the paper's form says what a level is "
                "clipped to, and clipping is not 'per-level': leave weights out (the noise has W "
                "of the paper in any case), or set clipping = 'per-level'"
            )
        return None

    def make(self, asked: NoiseRequest) -> Bounded:
        """The weighted mechanism, or a literal one."""
        from sordino.mechanisms.haar.basis import Basis
        from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian

        basis = Basis.flat(asked.dimension) if self.blocks == "flat" else Basis.of(asked.parameters)
        kind = HaarGaussian if self.clipping is None else LevelGaussian
        clip, sigma = asked.clip, asked.noise_multiplier
        if self.form == "sound":
            weights = self._weights(basis, asked)
            made = kind.weighted(clip=clip, noise_multiplier=sigma, basis=basis, weights=weights)
            return replace(made, learns=self.exponent) if self.learns else made
        if self.clipping is None and asked.unit != "sample" and asked.update_bound is not None:
            return kind.literal_server(  # algorithm 2
                clip=clip,
                noise_multiplier=sigma,
                basis=basis,
                bound=asked.update_bound,
                weight=asked.largest,
                expected=asked.largest,
                discount=self.discount,
            )
        return kind.literal(
            clip=clip,
            noise_multiplier=sigma,
            basis=basis,
            discount=self.discount,
            weighted=self.clipping is not None and self.weights == "paper",
        )

    def _weights(self, basis: Basis, asked: NoiseRequest) -> Groups:
        from sordino.mechanisms.haar.gaussian import optimal, paper

        if self.weights in ("uniform", "learned"):
            return (1.0,) * basis.groups
        if self.weights == "paper":
            found = paper(basis)
            # so that nothing is clipped harder than by C in the plain norm
            return tuple(w / max(found) for w in found)
        if asked.energies is None:
            raise StudyError(LOOKS)
        return optimal(asked.energies(basis.energies), basis.sizes, exponent=self.exponent)


@register
class KNormNoise(Noise):
    """Noise of density exp(-epsilon |x| / C): pure privacy; much noise if d is large.

    Pure for each step (Hardt and Talwar 2010).

    ``form = "paper"`` draws its length as MAPA does: NOT private, and booked at what it is.
    ``dimension`` is the model's, filled in when the noise is calibrated.

    Attributes:
        dimension: numbers in a model; filled in when the noise is calibrated
    """

    simulated: ClassVar[bool] = True
    sized: ClassVar[bool] = True

    kind: Literal["k-norm"] = "k-norm"
    dimension: AtLeastOne | None = None

    def for_dimension(self, dimension: int) -> Self:
        """With d filled in."""
        if self.dimension not in (None, dimension):
            raise StudyError(
                f"privacy.mechanism.dimension is {self.dimension}, but the model has "
                f"{dimension} numbers; leave it out"
            )
        return self.model_copy(update={"dimension": dimension})

    def event(self, noise_multiplier: float) -> event.Event:
        """epsilon_0 of one release; in the paper's form, what it claims."""
        if self.dimension is None:
            raise StudyError(
                "the price of privacy.mechanism 'k-norm' depends on the model's size, which "
                "is not known here"
            )
        return self._made.claimed(noise_multiplier, self.dimension)

    def make(self, asked: NoiseRequest) -> Bounded:
        """Noise of the right length, or of the paper's."""
        self.for_dimension(asked.dimension)
        return self._made(
            clip=asked.clip, noise_multiplier=asked.noise_multiplier, dimension=asked.dimension
        )

    @property
    def _made(self) -> type[KNorm | ExponentialNorm]:
        from sordino.mechanisms import knorm

        return knorm.KNorm if self.form == "sound" else knorm.ExponentialNorm
