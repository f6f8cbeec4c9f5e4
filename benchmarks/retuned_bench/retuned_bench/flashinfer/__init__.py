"""FlashInfer-Bench JSON: definitions, workloads, solutions and traces in, and out again.

Their schema is mirrored here, not imported. What it cannot say goes where its strict reader keeps
or ignores it: a tag of a definition, a file of a solution, a library of a trace's environment. What
cannot be said at all is refused with its reason. Nothing that is read is ever executed.
"""

from retuned_bench.flashinfer.definitions import (
    ImportedDefinition,
    export_definition,
    import_definition,
)
from retuned_bench.flashinfer.outcomes import traces_of
from retuned_bench.flashinfer.schema import Kind, NotExportable, kind_of, read_documents
from retuned_bench.flashinfer.solutions import (
    ImportedSolution,
    export_solution,
    import_solution,
)
from retuned_bench.flashinfer.traces import ImportedTrace, export_trace, import_trace

__all__ = [
    "ImportedDefinition",
    "ImportedSolution",
    "ImportedTrace",
    "Kind",
    "NotExportable",
    "export_definition",
    "export_solution",
    "export_trace",
    "import_definition",
    "import_solution",
    "import_trace",
    "kind_of",
    "read_documents",
    "traces_of",
]
