"""``retuned bench kernelbench``: KernelBench's problems, solved by files or by a generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.output import JsonFlag
from retuned.cli.session import ConfigOption

app = typer.Typer(no_args_is_help=True, help="Benchmarks of generators.")


@app.callback()
def _group() -> None:
    """Keep ``kernelbench`` a subcommand though it is the only one."""


@app.command("kernelbench")
def kernelbench(
    problems: Annotated[
        Path, typer.Option(help="Folder with problems, such as KernelBench's own, levels and all.")
    ],
    solutions: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a kernel per problem, in folders or not: NAME.py (Triton, the first "
            "choice where there is a GPU) or NAME.cpp (C++ for the processor, the first choice "
            "elsewhere, where Triton is interpreted and gets no time)."
        ),
    ] = None,
    generator: Annotated[
        list[str] | None,
        typer.Option(help="Who looks for something faster than the solution; may be given again."),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Measure torch.compile too; takes its time.")
    ] = False,
    p: Annotated[
        list[float] | None, typer.Option("--p", min=0.0, help="Further p of fast_p, such as 1.5.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.2, help="Time to time one kernel.")] = 3.0,
    search_seconds: Annotated[
        float, typer.Option(min=5.0, help="Time of a generator for one problem.")
    ] = 60.0,
    candidates: Annotated[int, typer.Option(min=1, help="Most variants of one problem.")] = 16,
    out: Annotated[
        Path | None,
        typer.Option(help="Write every outcome here as it comes (JSONL), and go on from there."),
    ] = None,
    config: ConfigOption = None,
    json: JsonFlag = False,
) -> None:
    """Score kernels for KernelBench's problems: compiled, correct, and faster than PyTorch."""
    from retuned_bench.kernelbench.benchmark import run_benchmark  # `retuned --help` stays cheap

    run_benchmark(
        problems,
        solutions=solutions,
        generator=generator or (),
        compile=compile,
        p=p or (),
        seconds=seconds,
        search_seconds=search_seconds,
        candidates=candidates,
        out=out,
        config=config,
        json=json,
    )
