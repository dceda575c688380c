"""`esker trace generate` and `esker trace stats`."""

from pathlib import Path
from typing import Annotated

import typer

trace_app = typer.Typer(no_args_is_help=True, help="Generate request traces and print their figures.")


@trace_app.command("stats")
def stats(
    trace: Annotated[Path, typer.Argument(help="Trace in Mooncake's format: one JSON object a line.")],
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.", metavar="N")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print a trace's figures: requests, blocks, prefix hits of an infinite cache, lengths."""
    from esker.tools.trace.format import read_trace
    from esker.tools.trace.report import print_stats
    from esker.tools.trace.stats import trace_stats

    print_stats(trace_stats(read_trace(trace, requests)), title=str(trace), as_json=json)


@trace_app.command("generate")
def generate(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    preset: Annotated[str, typer.Option(help="Figures to start from; the options below change them.")] = "conversation",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal traces.")] = 0,
    requests: Annotated[int | None, typer.Option(help="Number of requests.", metavar="N")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Input length distribution as PERCENT:TOKENS points, such as 0:900,50:7000,90:27000,100:126000.",
            metavar="POINTS",
        ),
    ] = None,
    turns: Annotated[
        float | None, typer.Option(help="Mean requests per conversation; later turns repeat what was there.")
    ] = None,
    hit_share: Annotated[
        float | None, typer.Option(help="Share of blocks that are prefix hits, to steer to; 'turns' is then a start.")
    ] = None,
    free_hits: Annotated[
        bool, typer.Option("--free-hits", help="Do not steer: the hits come as the turns bring them.")
    ] = False,
    system_prompts: Annotated[int | None, typer.Option(help="Different system prompts, shared over users.")] = None,
    system_prompt_blocks: Annotated[int | None, typer.Option(help="Blocks of a system prompt.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second of the trace's own time.")] = None,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens per block.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The figures as one JSON object on stdout.")] = False,
) -> None:
    """Write a trace made from a seed and a few figures, and print its figures."""
    import dataclasses

    from esker.tools.trace.format import write_trace
    from esker.tools.trace.generate import generate_trace
    from esker.tools.trace.presets import parse_quantiles, preset_named
    from esker.tools.trace.report import print_stats
    from esker.tools.trace.stats import trace_stats

    given = {
        "requests": requests,
        "input_length": None if lengths is None else parse_quantiles(lengths),
        "turns": turns,
        "hit_share": hit_share,
        "system_prompts": system_prompts,
        "system_prompt_blocks": system_prompt_blocks,
        "requests_per_s": rate,
        "block_tokens": block_tokens,
    }
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if free_hits:
        changes["hit_share"] = None
    profile = dataclasses.replace(preset_named(preset), **changes)  # type: ignore[arg-type]
    made = list(generate_trace(profile, seed))
    write_trace(output, made)
    print_stats(trace_stats(made), title=str(output), as_json=json)
