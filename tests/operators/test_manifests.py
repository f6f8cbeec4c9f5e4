from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from tests.expect import raises_code, raises_naming
from tests.operators.security import violations
from tests.operators.versions import VERSIONS

from retuned.api.target import Vendor
from retuned.errors import Refused, UsageError
from retuned_operator.manifests import (
    Endpoint,
    JobRequest,
    JobSettings,
    ServerImage,
    SidecarSettings,
    child_name,
    decision_policy,
    experiment_name,
    experiment_namespace,
    freeze_policy,
    inject,
    job_objects,
    limit_range,
    network_policies,
    operator_roles,
    people_roles,
    priority_class,
    proposal_name,
    quota,
)
from retuned_operator.manifests.admission import replica_policy
from retuned_operator.manifests.jobs import MAX_TASK_BYTES, RESULTS_DIR, TELLER
from retuned_operator.manifests.replicas import ReplicaTemplate, replica_pod, template_of
from retuned_operator.manifests.server_container import CODE_DIR
from retuned_operator.schema import JobRole

SETTINGS = JobSettings(
    image="registry.example/retuned-experiment@sha256:" + "0" * 64,
    namespace="retuned-experiments",
    gpu_models={"MI300X": {"amd.com/gpu.product-name": "MI300X"}, "H100": {"gpu": "h100"}},
    device_groups={Vendor.AMD: (110,)},
    tolerations=({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},),
)
REQUEST = JobRequest(
    role=JobRole.SEARCH,
    experiment="exp-1",
    experiment_uid="0b5c-1",
    experiment_namespace="serving",
    attempt=1,
    task='{"plan": {}}',
    vendor=Vendor.AMD,
    model="MI300X",
    deadline_s=1800,
)
SERVED = ServerImage(
    image="registry.example/team/vllm@sha256:" + "a" * 64,
    python="/opt/venv/bin/python3.12",
    pull_secrets=("team", "pull"),
)
TUNED = replace(REQUEST, role=JobRole.VERIFY, server=SERVED)
SIDECAR = SidecarSettings(
    image="registry.example/retuned-sidecar:1", agent_url="https://retuned.retuned.svc:8443"
)


def job(request: JobRequest = REQUEST, settings: JobSettings = SETTINGS) -> dict[str, Any]:
    return job_objects(request, settings)[1]


MODEL = Endpoint(
    cidr="203.0.113.7/32",
    url="https://models.example.org/v1",
    model="m",
    prompt_usd_per_mtok=0.0,
    completion_usd_per_mtok=0.0,
)


def pod(request: JobRequest = REQUEST, settings: JobSettings = SETTINGS) -> dict[str, Any]:
    spec: dict[str, Any] = job(request, settings)["spec"]["template"]["spec"]
    return spec


def server_pod(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "chat-0", "annotations": {"retuned.dev/inject": "true"}},
        "spec": {
            "containers": [
                {
                    "name": "server",
                    "image": "vllm:1",
                    "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": "A", "value": "1"}],
                }
            ],
            **changes,
        },
    }


def workload(**changes: Any) -> dict[str, Any]:
    """Return a ReplicaSet of servers as its Deployment has made it."""
    pod = server_pod()
    labels = {"app": "chat", "pod-template-hash": "5d8f"}
    notes = {"retuned.dev/inject": "true"}
    template = {"metadata": {"labels": labels, "annotations": notes}, "spec": pod["spec"]}
    return {"kind": "ReplicaSet", "spec": {"template": template, **changes}}


def a_replica() -> dict[str, Any]:
    template = template_of(workload())
    assert isinstance(template, ReplicaTemplate)
    return replica_pod(
        template,
        name="swp-1-0-a",
        pair="swp-1-0",
        namespace="serving",
        proposal="swp-1",
        proposal_uid="u-1",
    )


def everything() -> list[dict[str, Any]]:
    jobs = [
        each
        for request in (*(replace(REQUEST, role=role) for role in JobRole), TUNED)
        for each in job_objects(
            request,
            replace(
                SETTINGS,
                queue="gpus",
                runtime_class="kata",
                user_namespaces=True,
                pull_secrets=("pull",),
                endpoint_secret="model-key",
            ),
        )
    ]
    return [
        *jobs,
        experiment_namespace("retuned-experiments"),
        priority_class("retuned-experiment"),
        quota(
            "retuned-experiments",
            priority="retuned-experiment",
            gpu_resources=["amd.com/gpu"],
            max_gpus=2,
        ),
        limit_range("retuned-experiments", max_cpu="16", max_memory="64Gi", max_storage="32Gi"),
        *network_policies("retuned-experiments", endpoint=Endpoint(cidr="203.0.113.7/32")),
        *decision_policy(),
        *freeze_policy(),
        *operator_roles(
            "retuned-operator",
            namespace="retuned",
            watched=["serving", "staging"],
            experiments="retuned-experiments",
        ),
        *operator_roles("retuned-operator", namespace="retuned", watched=[], experiments=""),
        *operator_roles(
            "retuned-operator", namespace="retuned", watched=[], experiments="", replicas=True
        ),
        *replica_policy("retuned-operator", namespace="retuned"),
        a_replica(),
        *people_roles(),
        dict(inject(server_pod(), settings=SIDECAR).pod),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_in_every_supported_version(version: str) -> None:
    for body in everything():
        if version == "1.29" and body["kind"].startswith("ValidatingAdmissionPolicy"):
            # 1.29 has it as v1beta1 only; the chart's toggle leaves it out there
            body = body | {"apiVersion": "admissionregistration.k8s.io/v1beta1"}
        kubernetes_validate.validate(body, version, strict=True)


def test_every_object_is_plain_json_and_the_same_every_time() -> None:
    assert json.dumps(everything()) == json.dumps(everything())


class TestAnExperimentJob:
    def test_waits_to_be_released_and_is_tried_once(self) -> None:
        spec = job()["spec"]
        assert spec["suspend"] is True
        assert spec["backoffLimit"] == 0
        assert spec["parallelism"] == spec["completions"] == 1
        assert spec["podReplacementPolicy"] == "Failed"
        assert spec["template"]["spec"]["restartPolicy"] == "Never"

    def test_ends_at_its_deadline_and_is_cleared_away(self) -> None:
        spec = job()["spec"]
        assert spec["template"]["spec"]["activeDeadlineSeconds"] == 1800
        assert "activeDeadlineSeconds" not in spec, "waiting for a node would count"
        assert spec["ttlSecondsAfterFinished"] == 3600

    def test_is_not_failed_by_a_disruption_but_by_a_final_exit_code(self) -> None:
        ignore, fail = job()["spec"]["podFailurePolicy"]["rules"]
        assert ignore == {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
        assert fail["action"] == "FailJob"
        assert set(fail["onExitCodes"]["values"]) >= {64, 65, 66}
        assert 0 not in fail["onExitCodes"]["values"]

    @pytest.mark.parametrize("role", JobRole)
    def test_meets_the_restricted_standard(self, role: JobRole) -> None:
        assert violations(pod(replace(REQUEST, role=role))) == []

    @pytest.mark.parametrize("role", JobRole)
    def test_has_no_token_no_host_and_a_read_only_root(self, role: JobRole) -> None:
        spec = pod(replace(REQUEST, role=role))
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert "serviceAccountName" not in spec
        for container in (*spec["initContainers"], *spec["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for volume in spec["volumes"]:
            if "emptyDir" in volume:
                assert volume["emptyDir"]["sizeLimit"]

    def test_asks_for_one_accelerator_of_the_model_and_may_open_it(self) -> None:
        spec = pod()
        assert spec["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "1"
        assert spec["nodeSelector"] == {"amd.com/gpu.product-name": "MI300X"}
        assert spec["securityContext"]["supplementalGroups"] == [110]

    def test_asks_for_the_resource_that_its_vendors_plugin_offers(self) -> None:
        limits = pod(replace(REQUEST, vendor=Vendor.NVIDIA, model="H100"))["containers"][0][
            "resources"
        ]["limits"]
        assert limits["nvidia.com/gpu"] == "1"
        assert "amd.com/gpu" not in limits

    @pytest.mark.parametrize("role", [JobRole.COMPILE, JobRole.GENERATE])
    def test_that_needs_no_accelerator_asks_for_none(self, role: JobRole) -> None:
        spec = pod(replace(REQUEST, role=role))
        assert not any("gpu" in name for name in spec["containers"][0]["resources"]["limits"])
        assert "nodeSelector" not in spec
        assert "tolerations" not in spec
        assert "supplementalGroups" not in spec["securityContext"]

    def test_on_a_cpu_target_times_without_an_accelerator(self) -> None:
        spec = pod(replace(REQUEST, vendor=Vendor.CPU, model="epyc"))
        assert not any("gpu" in name for name in spec["containers"][0]["resources"]["limits"])

    def test_on_a_cpu_target_takes_what_was_named_to_stand_for_a_processor(self) -> None:
        settings = replace(
            SETTINGS,
            gpu_resources={Vendor.CPU: "example.org/quiet-core"},
            gpu_models={"epyc": {"example.org/cpu": "epyc"}},
        )
        spec = pod(replace(REQUEST, vendor=Vendor.CPU, model="epyc"), settings)
        assert spec["containers"][0]["resources"]["limits"]["example.org/quiet-core"] == "1"
        assert spec["nodeSelector"] == {"example.org/cpu": "epyc"}

    def test_for_a_model_that_no_node_is_known_for_is_refused(self) -> None:
        with raises_code(
            Refused, "gpu-model-unknown", "'MI999'", "experiments.gpuModels"
        ) as caught:
            job(replace(REQUEST, model="MI999"))
        assert caught.value.code == "gpu-model-unknown"

    def test_for_a_vendor_without_a_resource_is_refused(self) -> None:
        with pytest.raises(Refused) as caught:
            job(REQUEST, replace(SETTINGS, gpu_resources={}))
        assert caught.value.code == "gpu-resource-unknown"

    def test_stays_below_production(self) -> None:
        assert pod()["priorityClassName"] == "retuned-experiment"
        assert pod(replace(REQUEST, priority_class="tuning"))["priorityClassName"] == "tuning"
        assert pod()["terminationGracePeriodSeconds"] == 10

    def test_is_handed_to_kueue_where_there_is_a_queue(self) -> None:
        assert "kueue.x-k8s.io/queue-name" not in job()["metadata"]["labels"]
        queued = job(REQUEST, replace(SETTINGS, queue="gpus"))
        assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"

    @pytest.mark.parametrize("role", JobRole)
    def test_tells_its_results_by_a_container_that_cannot_change_them(self, role: JobRole) -> None:
        spec = pod(replace(REQUEST, role=role))
        (runner,), (teller,) = spec["containers"], spec["initContainers"]
        assert (teller["name"], teller["restartPolicy"]) == (TELLER, "Always")
        assert teller["image"] == runner["image"]
        (mount,) = teller["volumeMounts"]
        assert mount == {"name": "results", "mountPath": RESULTS_DIR, "readOnly": True}
        assert {"name": "results", "mountPath": RESULTS_DIR} in runner["volumeMounts"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "results")
        assert volume["emptyDir"] == {"sizeLimit": "64Mi"}
        assert not any("gpu" in name for name in teller["resources"]["limits"])
        assert {each["name"] for each in teller["env"]} == {
            "RETUNED_EXPERIMENT_UID", "RETUNED_JOB", "RETUNED_POD_UID", "RETUNED_RESULTS_DIR",
        }  # fmt: skip

    def test_has_the_key_of_the_model_only_where_nothing_generated_runs(self) -> None:
        settings = replace(SETTINGS, endpoint_secret="model-key")
        for role in JobRole:
            text = json.dumps(pod(replace(REQUEST, role=role), settings))
            assert ("model-key" in text) is (role is JobRole.GENERATE)

    def test_that_asks_a_model_knows_its_name_and_no_other_and_nobody_else_does(self) -> None:
        settings = replace(SETTINGS, endpoint=MODEL)
        for role in JobRole:
            aliases = pod(replace(REQUEST, role=role), settings).get("hostAliases")
            known = [{"ip": "203.0.113.7", "hostnames": ["models.example.org"]}]
            assert aliases == (known if role is JobRole.GENERATE else None)
        plain = replace(MODEL, url="https://203.0.113.7/v1", cidr="203.0.113.0/24")
        spec = pod(replace(REQUEST, role=JobRole.GENERATE), replace(SETTINGS, endpoint=plain))
        assert "hostAliases" not in spec

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"model": ""}, "endpoint.model"),
            ({"prompt_usd_per_mtok": None}, "a price"),
            ({"max_usd": -1.0}, "prices"),
            ({"variants": 0}, "80000 s"),
            ({"url": "ftp://models.example.org"}, "'ftp://models.example.org'"),
            ({"cidr": "203.0.113.0/24"}, "endpoint.cidr"),
        ],
    )
    def test_a_model_that_could_not_be_asked_is_refused_at_the_start(
        self, change: dict[str, Any], says: str
    ) -> None:
        with raises_naming(ValueError, says):
            replace(MODEL, **change)

    def test_a_key_is_sent_over_https_only(self) -> None:
        in_the_clear = replace(MODEL, url="http://models.example.org/v1")
        assert replace(SETTINGS, endpoint=in_the_clear).asks_model
        with raises_naming(ValueError, "endpoint.url", "a key", "https"):
            replace(SETTINGS, endpoint=in_the_clear, endpoint_secret="model-key")

    def test_is_owned_by_its_experiment_where_an_owner_counts(self) -> None:
        assert "ownerReferences" not in job()["metadata"]  # another namespace
        near = job(REQUEST, replace(SETTINGS, namespace=""))["metadata"]
        assert near["namespace"] == "serving"
        assert near["ownerReferences"][0]["uid"] == REQUEST.experiment_uid
        assert near["ownerReferences"][0]["controller"] is True

    def test_can_be_found_by_its_experiments_uid(self) -> None:
        body = job()
        for metadata in (body["metadata"], body["spec"]["template"]["metadata"]):
            assert metadata["labels"]["retuned.dev/experiment-uid"] == REQUEST.experiment_uid
            assert metadata["labels"]["retuned.dev/role"] == "search"

    def test_has_the_same_name_for_the_same_try_and_another_for_the_next(self) -> None:
        assert job()["metadata"]["name"] == REQUEST.name
        names = {replace(REQUEST, attempt=n, role=r).name for n in (1, 2) for r in JobRole}
        assert len(names) == 2 * len(JobRole)
        assert all(len(name) <= 63 for name in names)

    def test_gets_its_task_from_an_immutable_config_map_of_its_own_name(self) -> None:
        task, body = job_objects(REQUEST, SETTINGS)
        assert task["immutable"] is True
        assert task["data"]["task.json"] == REQUEST.task
        assert task["metadata"]["name"] == body["metadata"]["name"]

    def test_with_a_task_that_no_config_map_holds_is_refused(self) -> None:
        with raises_code(Refused, "task-too-large", "1000001 bytes", "1000000"):
            job_objects(replace(REQUEST, task="x" * (MAX_TASK_BYTES + 1)), SETTINGS)

    @pytest.mark.parametrize("deadline_s", [0, -1, 86_401])
    def test_without_an_end_is_refused(self, deadline_s: int) -> None:
        with raises_naming(UsageError, "deadline", "86400 s"):
            job_objects(replace(REQUEST, deadline_s=deadline_s), SETTINGS)

    def test_never_runs_as_root(self) -> None:
        with raises_naming(ValueError, "root"):
            replace(SETTINGS, user_id=0)


class TestTheContainerOfAServer:
    """In the pod of an experiment on a tunable."""

    def containers(
        self, request: JobRequest = TUNED, settings: JobSettings = SETTINGS
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        server, runner = pod(request, settings)["containers"]
        assert (server["name"], runner["name"]) == ("server", "runner")
        return server, runner

    def test_is_the_targets_image_with_the_servers_own_python(self) -> None:
        server, runner = self.containers()
        assert server["image"] == SERVED.image
        assert server["command"][:3] == [
            SERVED.python, "-I", f"{CODE_DIR}/retuned/tunables/host.py",
        ]  # fmt: skip
        assert runner["image"] == SETTINGS.image

    def test_starts_before_the_runner_that_waits_for_it(self) -> None:
        assert [each["name"] for each in pod(TUNED)["containers"]] == ["server", "runner"]

    def test_has_the_gpu_and_its_memory_and_the_runner_has_neither(self) -> None:
        server, runner = self.containers()
        assert server["resources"]["limits"]["amd.com/gpu"] == "1"
        assert not any("gpu" in name for name in runner["resources"]["limits"])
        with_memory = [
            each["name"]
            for each in (server, runner)
            if any(mount["mountPath"] == "/dev/shm" for mount in each["volumeMounts"])
        ]
        assert with_memory == ["server"]
        spec = pod(TUNED)
        assert spec["nodeSelector"] == {"amd.com/gpu.product-name": "MI300X"}
        assert spec["securityContext"]["supplementalGroups"] == [110]
        assert spec["tolerations"] == [dict(each) for each in SETTINGS.tolerations]

    def test_of_a_target_on_a_processor_asks_for_no_gpu(self) -> None:
        server, _ = self.containers(replace(TUNED, vendor=Vendor.CPU, model="epyc"))
        assert not any("gpu" in name for name in server["resources"]["limits"])
        assert not any(mount["mountPath"] == "/dev/shm" for mount in server["volumeMounts"])

    def test_cannot_reach_results_task_or_folder_of_the_runner(self) -> None:
        server, runner = self.containers()
        shared = {each["name"] for each in server["volumeMounts"]} & {
            each["name"] for each in runner["volumeMounts"]
        }
        assert shared == {"host"}

    def test_lets_the_runner_alone_connect_where_that_looks(self) -> None:
        server, runner = self.containers(replace(TUNED, server=replace(SERVED, user_id=1000)))
        env = {each["name"]: each.get("value") for each in server["env"]}
        assert env["RETUNED_ALLOWED_UIDS"] == str(SETTINGS.user_id)
        path = {each["name"]: each.get("value") for each in runner["env"]}["RETUNED_HOST_SOCKET"]
        assert server["command"][server["command"].index("--socket") + 1] == path
        folder = path.rpartition("/")[0]
        for each in (server, runner):
            assert {"name": "host", "mountPath": folder} in each["volumeMounts"]

    def test_gets_the_childs_code_which_it_cannot_change(self) -> None:
        spec = pod(TUNED)
        (code,) = (each for each in spec["initContainers"] if each["name"] == "code")
        assert code["image"] == SETTINGS.image
        assert code["volumeMounts"] == [{"name": "code", "mountPath": CODE_DIR}]
        server, _ = self.containers()
        mount = {"name": "code", "mountPath": CODE_DIR, "readOnly": True}
        assert mount in server["volumeMounts"]

    @pytest.mark.parametrize(("given", "runs_as"), [(None, 65532), (0, 65532), (1000, 1000)])
    def test_runs_as_the_targets_user_and_never_as_root(
        self, given: int | None, runs_as: int
    ) -> None:
        request = replace(TUNED, server=replace(SERVED, user_id=given))
        server, runner = self.containers(request)
        assert server["securityContext"]["runAsUser"] == runs_as
        assert "runAsUser" not in runner["securityContext"]
        assert violations(pod(request)) == []

    def test_has_no_token_and_every_folder_has_a_limit(self) -> None:
        spec = pod(TUNED)
        assert spec["automountServiceAccountToken"] is False
        assert all(
            volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume
        )
        for each in (*spec["initContainers"], *spec["containers"]):
            assert each["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory"} <= set(each["resources"]["limits"])
        assert spec["activeDeadlineSeconds"] == TUNED.deadline_s

    def test_brings_the_secrets_that_pull_it_each_once(self) -> None:
        spec = pod(TUNED, replace(SETTINGS, pull_secrets=("pull",)))
        assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "team"}]

    def test_brings_its_runtime_class(self) -> None:
        settings = replace(SETTINGS, runtime_class="kata")
        assert pod(TUNED, settings)["runtimeClassName"] == "kata"
        own = replace(TUNED, server=replace(SERVED, runtime_class="nvidia"))
        assert pod(own, settings)["runtimeClassName"] == "nvidia"

    @pytest.mark.parametrize("role", [r for r in JobRole if r is not JobRole.VERIFY])
    def test_is_in_the_trusted_job_alone(self, role: JobRole) -> None:
        with raises_naming(UsageError, str(role)):
            job(replace(TUNED, role=role))

    @pytest.mark.parametrize(
        ("change", "names"),
        [
            ({"image": "vllm:latest"}, "vllm:latest"),
            ({"image": "vllm@sha256:" + "A" * 64}, "vllm@sha256"),
            ({"image": "a b@sha256:" + "a" * 64}, "a b@"),
            ({"python": "python3"}, "python3"),
            ({"python": "/usr/bin/python3 -c"}, "-c"),
            ({"pull_secrets": ("Not_a_name",)}, "Not_a_name"),
            ({"pull_secrets": ("a",) * 17}, "pull secrets"),
            ({"runtime_class": "Kata!"}, "Kata!"),
            ({"user_id": -1}, "-1"),
        ],
    )
    def test_that_is_not_named_exactly_is_refused(self, change: dict[str, Any], names: str) -> None:
        with raises_code(Refused, "server-image-invalid", names):
            replace(SERVED, **change)


class TestTheNetworkOfExperiments:
    def test_is_closed_both_ways(self) -> None:
        (closed,) = network_policies("x", endpoint=None)
        assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in closed["spec"]
        assert "egress" not in closed["spec"]

    def test_covers_the_pods_of_every_job(self) -> None:
        (closed,) = network_policies("x", endpoint=None)
        wanted = closed["spec"]["podSelector"]["matchLabels"].items()
        for role in JobRole:
            template = job(replace(REQUEST, role=role))["spec"]["template"]
            assert wanted <= template["metadata"]["labels"].items()

    def test_opens_to_the_model_for_pods_that_run_nothing_generated(self) -> None:
        _, opened = network_policies("x", endpoint=Endpoint(cidr="203.0.113.7/32", port=8443))
        wanted = opened["spec"]["podSelector"]["matchLabels"].items()
        covered = [
            role
            for role in JobRole
            if wanted
            <= job(replace(REQUEST, role=role))["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert covered == [JobRole.GENERATE]
        assert opened["spec"]["policyTypes"] == ["Egress"]
        assert opened["spec"]["egress"] == [
            {
                "to": [{"ipBlock": {"cidr": "203.0.113.7/32"}}],
                "ports": [{"protocol": "TCP", "port": 8443}],
            }
        ]


def test_the_priority_class_preempts_nobody_and_grows_nothing_unless_told() -> None:
    body = priority_class("p")
    assert body["value"] == -100
    assert body["preemptionPolicy"] == "Never"
    assert body["globalDefault"] is False
    assert -10 < priority_class("p", may_scale_up=True)["value"] < 0


def test_the_namespace_enforces_the_restricted_standard() -> None:
    labels = experiment_namespace("x")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_names_are_for_one_thing_each() -> None:
    assert child_name("a", "b", "c") != child_name("a", "b\x00c", "")
    assert experiment_name("p", target_uid="t") != experiment_name("p", target_uid="u")
    assert proposal_name("p", target_uid="t") != proposal_name("q", target_uid="t")


class TestRights:
    def rules(self) -> list[tuple[str, dict[str, Any]]]:
        roles = [
            *operator_roles("op", namespace="retuned", watched=["a"], experiments="exp"),
            *operator_roles("op", namespace="retuned", watched=[], experiments=""),
            *people_roles(),
        ]
        return [
            (f"{role['kind']} {role['metadata']['name']}", rule)
            for role in roles
            for rule in role.get("rules", ())
        ]

    def test_have_no_wildcard(self) -> None:
        for _, rule in self.rules():
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]

    def test_do_not_reach_into_pods_or_workloads(self) -> None:
        for name, rule in self.rules():
            forbidden = {"pods/exec", "pods/attach", "pods/portforward", "deployments", "nodes"}
            assert not forbidden & set(rule["resources"]), name
            if "pods" in rule["resources"]:
                assert set(rule["verbs"]) <= {"get", "list", "watch"}

    def test_reach_one_secret_by_its_name(self) -> None:
        for _, rule in self.rules():
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"] == ["retuned-webhook-cert"]
                assert "list" not in rule["verbs"]

    def test_of_the_operator_do_not_write_decisions_policies_or_freezes(self) -> None:
        for role, rule in self.rules():
            writes = set(rule["verbs"]) & {"create", "update", "patch", "delete"}
            plain = {each for each in rule["resources"] if "/" not in each}
            if writes and role.split()[1].startswith("op"):
                assert not plain & {"swapdecisions", "kerneltuningpolicies", "tuningfreezes"}

    def test_to_make_jobs_end_at_the_namespace_of_experiments(self) -> None:
        roles = operator_roles("op", namespace="retuned", watched=["a"], experiments="exp")
        where = {
            role["metadata"].get("namespace")
            for role in roles
            for rule in role.get("rules", ())
            if "jobs" in rule["resources"]
        }
        assert where == {"exp"}

    def test_to_approve_are_not_those_to_change_a_decision(self) -> None:
        for name, rule in self.rules():
            if "swapdecisions" in rule["resources"] and "Cluster" in name:
                assert not set(rule["verbs"]) & {"update", "patch", "delete"}, name

    def test_to_approve_and_to_break_glass_are_given_apart(self) -> None:
        verbs = {
            role["metadata"]["name"]: {
                verb
                for rule in role["rules"]
                if "swapproposals" in rule["resources"]
                for verb in rule["verbs"]
            }
            for role in people_roles()
        }
        assert "approve" in verbs["retuned-approver"]
        assert "break-glass" not in verbs["retuned-approver"]
        assert "approve" not in verbs["retuned-admin"]
        assert "approve" not in verbs["retuned-viewer"]


class TestCanaryReplicas:
    def test_are_pods_of_the_template_without_its_count(self) -> None:
        body, template = a_replica(), workload()["spec"]["template"]
        assert body["spec"] == template["spec"]
        assert body["metadata"]["annotations"] == template["metadata"]["annotations"]
        assert body["metadata"]["labels"] == {
            "app": "chat",
            "app.kubernetes.io/managed-by": "retuned-operator",
            "retuned.dev/replica-of": "swp-1",
            "retuned.dev/replica-pair": "swp-1-0",
        }

    def test_go_with_their_proposal_and_no_workload_adopts_them(self) -> None:
        (owner,) = a_replica()["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("SwapProposal", "swp-1", "u-1")
        assert owner["controller"] is True

    def test_are_injected_as_other_pods_of_the_workload(self) -> None:
        found = inject(a_replica(), settings=SIDECAR)
        assert found.reason is None
        assert found.pod["metadata"]["labels"]["retuned.dev/replica-of"] == "swp-1"

    @pytest.mark.parametrize(
        "changes",
        [
            {"template": None},
            {"template": {"metadata": {}}},
            {"template": {"spec": {"containers": []}}},
            {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
        ],
    )
    def test_are_not_made_of_what_is_no_template_for_them(self, changes: dict[str, Any]) -> None:
        assert isinstance(template_of(workload(**changes)), str)

    def test_another_template_has_another_digest(self) -> None:
        first, again = template_of(workload()), template_of(workload())
        other = workload()
        other["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "b"}
        second = template_of(other)
        assert isinstance(first, ReplicaTemplate)
        assert isinstance(again, ReplicaTemplate)
        assert isinstance(second, ReplicaTemplate)
        assert first.digest == again.digest != second.digest

    def test_need_two_rights_more_and_nobody_has_them_without(self) -> None:
        def rules(*, replicas: bool) -> list[dict[str, Any]]:
            roles = operator_roles(
                "op", namespace="retuned", watched=["a"], experiments="exp", replicas=replicas
            )
            return [rule for role in roles for rule in role.get("rules", ())]

        without = rules(replicas=False)
        more = [rule for rule in rules(replicas=True) if rule not in without]
        assert [(rule["resources"], rule["verbs"]) for rule in more] == [
            (["pods"], ["create", "delete"]),
            (["replicasets", "statefulsets"], ["get"]),
        ]
        verbs = {verb for rule in without if "pods" in rule["resources"] for verb in rule["verbs"]}
        assert verbs == {"get", "list", "watch"}

    def test_are_all_that_the_operator_may_make_and_delete(self) -> None:
        policy, binding = replica_policy("op", namespace="retuned")
        (rules,) = policy["spec"]["matchConstraints"]["resourceRules"]
        assert rules["operations"] == ["CREATE", "DELETE"]
        (who,) = policy["spec"]["matchConditions"]
        assert "'system:serviceaccount:retuned:op'" in who["expression"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "Deny" in binding["spec"]["validationActions"]


class TestAdmissionOfDecisions:
    def expressions(self) -> str:
        policy, _ = decision_policy()
        return " ".join(each["expression"] for each in policy["spec"]["validations"])

    def test_proves_who_asks_and_that_they_may_approve(self) -> None:
        said = self.expressions()
        assert "object.spec.user == request.userInfo.username" in said
        assert "check('approve').allowed()" in said
        assert "request.namespace" in said  # the object's own namespace is not sure to be there

    def test_binds_to_uid_digest_and_another_author_than_the_proposals(self) -> None:
        said = self.expressions()
        assert "params.metadata.uid == object.spec.proposalRef.uid" in said
        assert "params.spec.artifact.digest == object.spec.digest" in said
        assert "params.spec.requestedBy" in said

    def test_refuses_where_there_is_no_proposal_or_the_policy_cannot_be_evaluated(self) -> None:
        policy, binding = decision_policy()
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Deny"
        assert "Deny" in binding["spec"]["validationActions"]

    def test_lets_programs_decide_only_where_that_is_chosen(self) -> None:
        assert "startsWith('system:')" in self.expressions()
        policy, _ = decision_policy(allow_service_accounts=True)
        assert not any("system:" in r["expression"] for r in policy["spec"]["validations"])

    def test_says_what_is_wrong_in_every_rule(self) -> None:
        for policy in (decision_policy()[0], freeze_policy()[0]):
            assert all(rule["message"] for rule in policy["spec"]["validations"])
