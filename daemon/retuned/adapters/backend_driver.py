"""Runs inside another package's interpreter: starts its search, and asks the lab for every outcome.

Standard library only, and nothing of retuned: this file is copied into the search's private folder
and run from there, by an interpreter that has the package and not us. ``main`` reads the task that
lies beside it and starts the search. The package then loads the same file as its evaluator:
``evaluate`` sends the program's text to the lab and returns the numbers that come back. No
candidate is ever executed here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import urllib.request
from typing import Any

TASK = "task.json"
"""Beside this file: what to search, where the lab listens, and the word that opens it."""
_MODEL = "retuned"
"""What the package calls the model; the lab's side knows the real name."""
_RECORDS = {
    "openevolve": "openevolve.evaluation_result",
    "skydiscover": "skydiscover.evaluation.evaluation_result",
}
_MAX_BYTES = 1 << 20
_MEMORY_BYTES = 6 << 30
_FILE_BYTES = 64 << 20
_OPEN_FILES = 512
_PR_SET_PDEATHSIG = 1
_HERE = os.path.dirname(os.path.abspath(__file__))


def evaluate(program_path: str) -> Any:  # noqa: ANN401 - the package's own record
    """Return what the lab says of a program; called by the package."""
    with open(program_path, "rb") as stream:
        text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
    with open(os.path.join(_HERE, TASK), encoding="utf-8") as stream:
        task = json.load(stream)
    told = _ask(task, {"program": text})
    record = importlib.import_module(_RECORDS[task["backend"]])
    return record.EvaluationResult(metrics=told["metrics"], artifacts=told["artifacts"])


def main() -> int:
    """Run the search that the task describes; the exit status says how it went."""
    with open(os.path.join(_HERE, TASK), encoding="utf-8") as stream:
        task = json.load(stream)
    if os.getppid() != task["parent"]:  # it died before this process could ask to die with it
        return 1
    _limit(float(task["cpu_s"]))
    program = os.path.join(_HERE, "initial" + task["suffix"])
    with open(program, "w", encoding="utf-8") as stream:
        stream.write(task["program"])
    {"openevolve": _openevolve, "skydiscover": _skydiscover}[task["backend"]](task, program)
    return 0


def _openevolve(task: dict[str, Any], program: str) -> None:
    config = importlib.import_module("openevolve.config")
    api = importlib.import_module("openevolve.api")
    settings = config.Config(
        **_search(task, config),
        prompt=config.PromptConfig(
            system_message=task["system"], max_artifact_bytes=task["artifact_bytes"]
        ),
        database=config.DatabaseConfig(num_islands=task["islands"], random_seed=task["seed"]),
        max_code_length=task["source_chars"],
    )
    api.run_evolution(program, os.path.abspath(__file__), config=settings, **_run(task))


def _skydiscover(task: dict[str, Any], program: str) -> None:
    config = importlib.import_module("skydiscover.config")
    api = importlib.import_module("skydiscover.api")
    database = config.AdaEvolveDatabaseConfig(random_seed=task["seed"], num_islands=task["islands"])
    settings = config.Config(
        **_search(task, config),
        prompt=config.PromptConfig(system_message=task["system"]),
        search=config.SearchConfig(type="adaevolve", database=database),
        max_solution_length=task["source_chars"],
    )
    api.run_discovery(program, os.path.abspath(__file__), config=settings, **_run(task))


def _search(task: dict[str, Any], config: Any) -> dict[str, Any]:  # noqa: ANN401 - a module
    """Return the settings that both packages call the same."""
    return {
        "max_iterations": task["iterations"],
        "checkpoint_interval": task["iterations"] + 1,
        "log_level": "WARNING",
        "random_seed": task["seed"],
        "language": task["language"],
        "file_suffix": task["suffix"],
        "llm": config.LLMConfig(**_model(task, config)),
        "evaluator": config.EvaluatorConfig(
            timeout=task["timeout_s"],
            max_retries=0,
            cascade_evaluation=False,
            parallel_evaluations=1,
        ),
    }


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """Return how both packages are told to run, and where they may write."""
    return {
        "iterations": task["iterations"],
        "output_dir": os.path.join(_HERE, "out"),
        "cleanup": False,
    }


def _model(task: dict[str, Any], config: Any) -> dict[str, Any]:  # noqa: ANN401 - a module
    """Return how both packages name the model: always the lab's own listener."""
    shared = {
        "api_base": task["url"] + "/v1",
        "api_key": task["token"],
        "temperature": task["temperature"],
        "top_p": None,
        "max_tokens": task["answer_tokens"],
        "timeout": task["timeout_s"],
        "retries": 0,
        "retry_delay": 0,
    }
    models = [config.LLMModelConfig(name=_MODEL, **shared)]
    return {**shared, "models": models, "evaluator_models": list(models)}


def _ask(task: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        task["url"] + "/evaluate",
        data=json.dumps(body).encode(),
        headers={
            "authorization": "Bearer " + task["token"],
            "content-type": "application/json",
        },
    )
    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with plain.open(request, timeout=task["timeout_s"]) as response:
        told = json.loads(response.read(_MAX_BYTES))
    return {"metrics": dict(told["metrics"]), "artifacts": dict(told["artifacts"])}


def _limit(cpu_s: float) -> None:
    """Bound what this process and its children may take."""
    for what, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(cpu_s) + 1),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _die_with_parent() -> None:
    """End with whoever started this process: a killed lab leaves no search behind.

    The package's own workers load this file too, so that it holds for them as well.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ in ("__main__", "evaluation_module"):
    _die_with_parent()
if __name__ == "__main__":
    sys.exit(main())
