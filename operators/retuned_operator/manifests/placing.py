"""Where pods of experiments may go: nodes with the right accelerator."""

from __future__ import annotations

from retuned.errors import Refused
from retuned_operator.crds.target import Vendor
from retuned_operator.manifests.settings import JobSettings


def nodes_of(model: str, settings: JobSettings) -> dict[str, str]:
    """Return the labels of nodes with a model.

    Raises
    ------
    Refused
        ``gpu-model-unknown``: no node is known to have it.
    """
    found = settings.gpu_models.get(model)
    if not found:
        error = Refused(
            f"no node labels are known for the accelerator {model[:63]!r}: "
            "no pod of an experiment can be placed; "
            "name them in the chart's value experiments.gpuModels, as "
            f"`{model[:63]}: {{LABEL: VALUE}}`"
        )
        error.code = "gpu-model-unknown"
        raise error
    return dict(found)


def gpu_resource(vendor: Vendor, settings: JobSettings) -> str:
    """Return the resource that stands for an accelerator.

    Raises
    ------
    Refused
        ``gpu-resource-unknown``: nothing is named for the vendor.
    """
    name = settings.gpu_resources.get(vendor, "")
    if not name:
        error = Refused(
            f"no resource is named for accelerators of {vendor}: no pod of an experiment can ask "
            f"for one; name it in the chart's value experiments.gpuResources.{vendor}"
        )
        error.code = "gpu-resource-unknown"
        raise error
    return name
