"""Settings, as the run file holds them beside `use = "workshop/..."`; an unknown key is an error with a suggestion."""

from attrs import field, frozen, validators


@frozen
class MedianConfig:
    """Settings of the algorithm `workshop/median`."""

    cap: float = field(default=2.0, validator=validators.gt(0))
    """Largest importance weight of a token, above 0; 1 never counts a token more than the sampler drew it."""
