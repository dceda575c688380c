"""Named profiles of the trace generator.

`conversation` has the statistics of the conversation trace that Mooncake's authors published (FAST'25): 12,031
requests in 59 minutes, 288,500 blocks of 512 tokens, all beginning with the same block, 36.64 % of blocks prefix hits.
"""

from esker.tools.trace.generate import Quantiles, TraceProfile, check_quantiles
from esker.wire.errors import UserError

CONVERSATION = TraceProfile(
    requests=12_031,
    input_length=(
        (0.0, 891),
        (0.05, 901),
        (0.10, 964),
        (0.15, 1_261),
        (0.20, 1_662),
        (0.25, 2_306),
        (0.30, 3_263),
        (0.35, 4_250),
        (0.40, 4_993),
        (0.45, 5_870),
        (0.50, 6_909),
        (0.55, 8_187),
        (0.60, 9_570),
        (0.65, 11_239),
        (0.70, 13_196),
        (0.75, 15_368),
        (0.80, 17_869),
        (0.85, 21_467),
        (0.875, 24_396),
        (0.90, 27_367),
        (0.925, 31_521),
        (0.94, 35_011),
        (0.95, 39_552),
        (0.96, 44_629),
        (0.97, 52_219),
        (0.98, 66_484),
        (0.99, 85_401),
        (0.995, 100_886),
        (0.999, 121_301),
        (1.0, 126_195),
    ),
    output_length=((0.0, 1), (0.05, 10), (0.10, 24), (0.25, 156), (0.5, 350), (0.75, 472), (0.9, 597), (1.0, 2_000)),
    turns=1.63,
    repeated=(
        (0.0, 0.02),
        (0.05, 0.14),
        (0.10, 0.29),
        (0.25, 0.52),
        (0.5, 0.80),
        (0.75, 0.93),
        (0.9, 0.97),
        (1.0, 1.0),
    ),
    age_s=(
        (0.0, 6),
        (0.05, 30),
        (0.10, 42),
        (0.25, 66),
        (0.5, 123),
        (0.75, 264),
        (0.9, 483),
        (0.99, 1_482),
        (1.0, 3_000),
    ),
    hit_share=0.3664,
)

PRESETS = {"conversation": CONVERSATION}


def preset_named(name: str) -> TraceProfile:
    """The preset's profile. Raises `UserError` for an unknown name."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UserError(f"no preset {name!r}; there are: {', '.join(sorted(PRESETS))}") from None


def parse_quantiles(text: str) -> Quantiles:
    """The distribution written as `0:900,50:7000,100:126000` (percent:tokens). Raises `UserError`."""
    try:
        points = [point.split(":") for point in text.split(",")]
        quantiles = tuple((float(percent) / 100, float(tokens)) for percent, tokens in points)
    except ValueError:
        raise UserError(f"not a distribution: {text!r}; write points such as 0:900,50:7000,100:126000") from None
    check_quantiles("lengths", quantiles)
    return quantiles
