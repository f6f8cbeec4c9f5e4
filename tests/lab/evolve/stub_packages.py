"""An interpreter with a package of our making, called openevolve, that does as its prompt says."""

from __future__ import annotations

import venv
from pathlib import Path

from retuned.lab.generators.evolve.package import Opening

_CONFIG = """
class Config:
    def __init__(self, **words):
        self.__dict__.update(words)

LLMConfig = LLMModelConfig = PromptConfig = DatabaseConfig = EvaluatorConfig = Config
"""
_RESULT = """
class EvaluationResult:
    def __init__(self, metrics, artifacts):
        self.metrics, self.artifacts = metrics, artifacts
"""
_API = """
import importlib.util, json, os, subprocess, sys, time, urllib.request

def ask(config, text, path="/chat/completions"):
    model = config.llm.models[0]
    request = urllib.request.Request(
        model.api_base + path, data=text.encode(),
        headers={"authorization": "Bearer " + model.api_key},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]

def question(text):
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 100})

def run_evolution(program, evaluator, config, iterations, output_dir, cleanup):
    spec = importlib.util.spec_from_file_location("evaluation_module", evaluator)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    how = config.prompt.system_message
    if how == "good":
        said = "start"
        for number in range(iterations):
            with open("program", "w") as stream:
                stream.write(ask(config, question(said)))
            told = module.evaluate("program")
            said = json.dumps([told.metrics, told.artifacts])
    elif how == "die":
        print("x" * 1000)
        sys.exit("frobnicate is not \\x1b[31minstalled")
    elif how == "flood":
        while True:
            print("x" * 2**20)
    elif how == "nonsense":
        ask(config, json.dumps({"messages": "none"}))
    elif how == "look":
        import resource
        seen = {"environment": dict(os.environ), "arguments": sys.argv, "folder": os.getcwd(),
                "files": resource.getrlimit(resource.RLIMIT_FSIZE)[0]}
        ask(config, question(json.dumps(seen)))
    elif how == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        ask(config, question(f"{os.getpid()} {child.pid}"))
        time.sleep(1000)
"""


def stub_python(folder: Path) -> Path:
    """Make an interpreter that has the stub and nothing else."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    made = packages / "openevolve"
    made.mkdir()
    for name, text in (
        ("__init__", ""),
        ("config", _CONFIG),
        ("evaluation_result", _RESULT),
        ("api", _API),
    ):
        (made / f"{name}.py").write_text(text)
    return folder / "bin" / "python"


def opening(how: str, *, iterations: int = 2) -> Opening:
    """Return what makes the stub do something."""
    return Opening(
        program="// EVOLVE-BLOCK-START\n",
        system=how,
        language="cpp",
        suffix=".cpp",
        iterations=iterations,
        islands=1,
        answer_tokens=1000,
        seed=7,
    )
