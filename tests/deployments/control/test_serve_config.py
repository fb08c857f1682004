"""What stands in the list of applications, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray.serve._private.build_app import build_app

from deployments.contract.model_arguments import group_arguments
from deployments.control.application_list import by_name, differences
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.control.serve_config import in_cluster, serve_config, serve_host
from deployments.replica.application import model
from deployments.settings.gateway import GatewaySettings
from deployments.settings.tree import Settings
from deployments.settings_files.load import load

FILE = """
models:
  device:
    runtime: synthetic
    slo: {latency_ms: 50}
    replicas: {count: 2, slots: 3, num_cpus: 0.25}
tenants:
  acme: {weight: 3}
gateway: {replicas: 2, host: 0.0.0.0, drain_s: 10, log: {level: debug}}
"""


@pytest.fixture
def config(tmp_path: Path):
    def make(text: str = FILE, *replaced: tuple[str, str]) -> dict[str, Any]:
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return serve_config(load(path, here=False, absolute=False))

    return make


def kinds(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    return {d.application: d.kind for d in differences(by_name(old), by_name(new))}


def between(deployment: dict[str, Any]) -> tuple[int, int]:
    bounds = deployment["autoscaling_config"]
    return bounds["min_replicas"], bounds["max_replicas"]


def test_a_models_arguments_are_what_the_user_wrote_of_its_replicas(config) -> None:
    model = by_name(config())["model-device"]
    assert model["args"] == {
        "name": "device",
        "settings": {
            "runtime": "synthetic", "slo": {"latency_ms": 50.0}, "replicas": {"slots": 3},
        },
        "channel": {},
    }  # fmt: skip
    (replicas,) = model["deployments"]
    assert (between(replicas), replicas["ray_actor_options"]["num_cpus"]) == ((2, 2), 0.25)
    # A batch of each gateway's staged ones behind the one that runs, at the hang limit, and grace.
    assert replicas["graceful_shutdown_timeout_s"] == 30 * (1 + 2 * 2) + 20


def block(apps: Any) -> dict[str, Any]:
    """What the list tells the control plane."""
    (deployment,) = apps["headrace-control"]["deployments"]
    found: dict[str, Any] = deployment["user_config"]
    return found


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        (("level: debug", "level: info"), {"gateway": "restarted"}),
        (("count: 2", "count: 5"), {"headrace-control": "updated", "model-device": "updated"}),
        (("count: 2", "min: 2"), {"headrace-control": "updated"}),
        (
            ("num_cpus: 0.25}", "num_cpus: 0.25}\n    batch: {max_size: 8}"),
            {"model-device": "restarted"},
        ),
        (("count: 2", "max: 2"), {"headrace-control": "updated", "model-device": "updated"}),
        (("count: 2", "count: 2, spare: 1, survive: 1"), {"headrace-control": "updated"}),
        (
            ("runtime: synthetic", "runtime: synthetic\n    scaling: {knee: 0.5, mode: observe}"),
            {"headrace-control": "updated"},
        ),
        (("tenants:", "scaling: {budget: {gpus: 4}}\ntenants:"), {"headrace-control": "updated"}),
        (
            ("gateway: {replicas: 2", "gateway: {replicas: 3"),
            {"gateway": "updated", "model-device": "updated"},
        ),
        (("weight: 3", "weight: 4"), {"headrace-control": "updated"}),
        (
            ("latency_ms: 50", "latency_ms: 60"),
            {"headrace-control": "updated", "model-device": "restarted"},
        ),
        (
            ("num_cpus: 0.25", "num_cpus: 0.5"),
            {"headrace-control": "updated", "model-device": "restarted"},
        ),
        (("drain_s: 10", "drain_s: 10"), {}),
    ],
)
def test_a_change_touches_what_it_shapes_and_nothing_else(config, change, restarts) -> None:
    assert kinds(config(), config(FILE, change)) == restarts


def test_where_the_file_lies_is_in_no_argument(tmp_path: Path) -> None:
    text = "models: {m: {runtime: onnxruntime, source: models/m.onnx}}\n"
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "settings.yaml").write_text(text)
    configs = [
        serve_config(load(tmp_path / folder / "settings.yaml", here=False, absolute=False))
        for folder in ("one", "two")
    ]
    assert configs[0] == configs[1]
    assert by_name(configs[0])["model-m"]["args"]["settings"]["source"] == "models/m.onnx"


def test_tenants_are_not_published_where_a_path_names_them(config) -> None:
    text = "models: {m: {runtime: synthetic}}\ngateway: {tenants_path: /etc/tenants}\n"
    apps = by_name(config(text))
    assert set(apps) == {"gateway", "headrace-control", "model-m"}
    assert set(block(apps)) == {"format", "scaling"}
    assert apps["gateway"]["args"]["tenants_path"] == "/etc/tenants"


def test_a_changed_policy_is_named_by_what_changed(config) -> None:
    old, new = config(), config(FILE, ("slots: 3", "slots: 3, spare: 2"))
    (found,) = differences(by_name(old), by_name(new))
    assert found.reasons == (
        "control.user_config.scaling.models.device.replicas.spare: unset -> 2",
    )


def test_what_is_put_comes_back_from_serve_as_the_same(config) -> None:
    """Through JSON: a tuple that became a list would be a difference for ever."""
    assert json.loads(json.dumps(config(GROUPS))) == config(GROUPS)


def test_a_reason_names_the_value_before_and_after(config) -> None:
    old, new = (
        config(),
        config(FILE, ("latency_ms: 50", "latency_ms: 60"), ("count: 2", "count: 1")),
    )
    _, found = differences(by_name(old), by_name(new))
    assert found.reasons == (
        "settings.slo.latency_ms: 50.0 -> 60.0",
        "model.autoscaling_config.min_replicas: 2 -> 1",
        "model.autoscaling_config.max_replicas: 2 -> 1",
    )


def test_what_came_and_went_is_told_in_order(config) -> None:
    old = config("models: {a: {runtime: synthetic}, b: {runtime: synthetic}}\n")
    new = config("models: {c: {runtime: synthetic}, a: {runtime: synthetic}}\n")
    assert list(kinds(old, new).items()) == [
        ("headrace-control", "updated"), ("model-c", "added"), ("model-b", "removed"),
    ]  # fmt: skip


def test_a_cluster_is_reached_from_everywhere_and_tells_serves_processes_the_settings(
    config,
) -> None:
    made = config(FILE, ("host: 0.0.0.0, ", "ingress: haproxy, limits: {max_requests: 70}, "))
    assert made["http_options"]["host"] == "0.0.0.0"
    assert by_name(made)["gateway"]["args"]["settings"]["host"] == "0.0.0.0"
    told = made["controller_options"]["runtime_env"]["env_vars"]
    assert (told["HEADRACE_HAPROXY_HOST"], told["HEADRACE_LOG_LEVEL"]) == ("0.0.0.0", "debug")
    assert told["HEADRACE_HAPROXY_MAX_REQUESTS"] == "70"


def test_an_address_in_the_file_is_haproxys_and_the_gateways_stay_reachable(config) -> None:
    made = config(FILE, ("host: 0.0.0.0", "ingress: haproxy, host: 10.0.0.7"))
    assert made["http_options"]["host"] == "0.0.0.0"
    told = made["controller_options"]["runtime_env"]["env_vars"]
    assert told["HEADRACE_HAPROXY_HOST"] == "10.0.0.7"


def test_the_hosts_own_cluster_keeps_gateways_behind_haproxy_and_needs_no_options(tmp_path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(FILE.replace("gateway: {", "gateway: {ingress: haproxy, "))
    made = serve_config(load(path, here=False), one_machine=True)
    assert made["http_options"]["host"] == "127.0.0.1"
    assert "controller_options" not in made


@pytest.mark.parametrize("said", [None, "10.0.0.7"])
def test_only_haproxy_faces_the_network_on_one_machine_unless_the_file_says(tmp_path, said) -> None:
    path = tmp_path / "settings.yaml"
    host = f"metrics_host: {said}, " if said else ""
    path.write_text(FILE.replace("gateway: {", f"gateway: {{ingress: haproxy, {host}"))
    here = serve_config(load(path, here=False), one_machine=True)
    cluster = serve_config(load(path, here=False))
    assert by_name(here)["gateway"]["args"]["settings"]["host"] == "0.0.0.0"
    assert by_name(here)["gateway"]["args"]["settings"]["metrics_host"] == (said or "127.0.0.1")
    assert by_name(cluster)["gateway"]["args"]["settings"].get("metrics_host") == said


GROUPS = """
models:
  device:
    runtime: synthetic
    options: {base_ms: 2}
    replicas:
      count: 2
      memory_mib: 512
      labels: {zone: a}
      groups:
        - {name: gpu, num_gpus: 1, resources: {mig_3g: 1}}
        - {name: cpu, count: 4, num_cpus: 2, options: {base_ms: 20}, overflow: {after_ms: 250}}
"""


def test_each_group_is_a_deployment_of_the_models_application(config) -> None:
    model = by_name(config(GROUPS))["model-device"]
    gpu, cpu = model["deployments"]
    assert [(d["name"], between(d)) for d in (gpu, cpu)] == [
        ("model-gpu", (2, 2)), ("model-cpu", (4, 4)),
    ]  # fmt: skip
    shared = {"memory": 512 << 20, "label_selector": {"zone": "a"}}
    assert gpu["ray_actor_options"] == shared | {
        "num_cpus": 0.5, "num_gpus": 1.0, "resources": {"mig_3g": 1.0},
    }  # fmt: skip
    assert cpu["ray_actor_options"] == shared | {"num_cpus": 2.0, "num_gpus": 0.0}


def test_a_groups_replicas_are_told_of_no_other_group(config) -> None:
    args = by_name(config(GROUPS))["model-device"]["args"]
    assert args["groups"] == [
        {"name": "gpu", "settings": {"runtime": "synthetic", "options": {"base_ms": 2}},
         "after_s": 0.0},
        {"name": "cpu", "settings": {"runtime": "synthetic", "options": {"base_ms": 20}},
         "after_s": 0.25},
    ]  # fmt: skip
    gpu, cpu = group_arguments(args)
    assert gpu == {
        "name": "device", "channel": {}, "group": "gpu",
        "settings": {"runtime": "synthetic", "options": {"base_ms": 2}},
    }  # fmt: skip
    other = by_name(config(GROUPS, ("base_ms: 20", "base_ms: 30")))["model-device"]["args"]
    assert group_arguments(other)[0] == gpu
    assert group_arguments(other)[1] != cpu


def test_a_model_without_groups_starts_its_replicas_with_its_own_arguments(config) -> None:
    args = by_name(config())["model-device"]["args"]
    assert group_arguments(args) == [args]


def test_the_count_of_one_group_changes_while_it_runs(config) -> None:
    for change in (("count: 4", "count: 5"), ("count: 4", "min: 0, max: 5")):
        assert kinds(config(GROUPS), config(GROUPS, change)) == {
            "headrace-control": "updated", "model-device": "updated",
        }  # fmt: skip


def test_serve_takes_bounds_and_the_policy_that_copies(config) -> None:
    from ray.serve.config import AutoscalingPolicy
    from ray.serve.schema import DeploymentSchema

    model = by_name(config(FILE, ("count: 2", "min: 0")))["model-device"]
    AutoscalingPolicy(**model["autoscaling_policy"])
    (replicas,) = model["deployments"]
    taken = DeploymentSchema.model_validate(replicas)
    assert taken.num_replicas != "auto"
    assert between(replicas) == (0, 1)


def test_serve_takes_what_is_asked_for_a_replica(config) -> None:
    from ray.serve.schema import RayActorOptionsSchema

    for deployment in by_name(config(GROUPS))["model-device"]["deployments"]:
        RayActorOptionsSchema.model_validate(deployment["ray_actor_options"])


def test_a_signature_in_a_url_is_not_shown() -> None:
    def app(url: str) -> dict[str, Any]:
        return {"name": "m", "args": {"source": url}}

    old, new = app("https://h/a.onnx?sig=SECRET#sha256=1"), app("https://h/b.onnx?sig=OTHER")
    (found,) = differences({"m": old}, {"m": new})
    assert found.reasons == ("source: https://h/a.onnx?...#sha256=1 -> https://h/b.onnx?...",)


def test_gateways_stand_on_the_nodes_that_have_their_labels(config) -> None:
    labelled = config(FILE, ("drain_s: 10", "drain_s: 10, labels: {headrace.io/role: gateway}"))
    assert kinds(config(), labelled) == {"gateway": "restarted"}
    (gateway,) = by_name(labelled)["gateway"]["deployments"]
    assert gateway["ray_actor_options"] == {
        "num_cpus": 1, "label_selector": {"headrace.io/role": "gateway"},
    }  # fmt: skip


def test_tenants_are_as_the_user_wrote_them_with_the_controllers_switch(config) -> None:
    told = block(by_name(config()))
    assert {name: value for name, value in told.items() if name not in ("format", "scaling")} == {
        "tenants": {"tenants": {"acme": {"weight": 3}}, "controllers": {"frozen": False}},
        "priorities": ["interactive", "standard", "bulk"],
    }


def test_the_autoscaler_is_told_what_was_written_and_with_a_pool_all_of_it(config) -> None:
    plain = by_name(config(FILE, ("num_cpus: 0.25}", "num_cpus: 0.25}\n    batch: {max_size: 8}")))
    assert block(plain)["scaling"] == {
        "models": {
            "device": {
                "runtime": "synthetic",
                "slo": {"latency_ms": 50.0},
                "replicas": {"count": 2, "slots": 3, "num_cpus": 0.25},
            }
        }
    }
    pooled = FILE + "scaling: {pool: {max: 2}}\n"
    scaling = by_name(config(pooled, ("drain_s: 10", "drain_s: 10, replay: false")))
    told = block(scaling)["scaling"]
    assert (told["scaling"], told["gateway"]) == ({"pool": {"max": 2}}, {"replay": False})
    assert Settings.model_validate(told).scaling.pool is not None


def test_the_autoscaler_is_told_at_which_length_a_group_ends(config) -> None:
    apps = by_name(
        config(
            GROUPS,
            ("options: {base_ms: 2}\n", "options: {base_ms: 2}\n    lengths: {max: 64}\n"),
            ("overflow: {after_ms: 250}", "lengths: {max: 16}"),
        )
    )
    terms = scaling_document(Settings.model_validate(block(apps)["scaling"])).settings.models
    assert [(g.name, g.max_length) for g in terms["device"].groups] == [("gpu", None), ("cpu", 16)]


POOLED = """\
models:
  device: {runtime: synthetic, replicas: {hang_limit_s: 3}}
  text: {runtime: onnxruntime, source: m.onnx, replicas: {hang_limit_s: 5}}
  other: {runtime: openvino, source: m.onnx}
scaling:
  pool: {min: 1, max: 2, models: [text, device], memory_mib: 64, resources: {mig_3g: 1}}
"""


def test_without_a_pool_there_is_no_application_of_it(config) -> None:
    assert "headrace-pool" not in by_name(config())


def test_the_pools_replicas_import_what_its_models_run_on(config) -> None:
    pool = by_name(config(POOLED))["headrace-pool"]
    assert pool["args"] == {
        "runtimes": ["onnxruntime", "synthetic"], "memory_bytes": 64 << 20, "after_s": 0.02,
    }  # fmt: skip
    limited = by_name(config(POOLED, ("memory_mib: 64", "memory_mib: 64, memory_limit_mib: 900")))
    assert limited["headrace-pool"]["args"] == {**pool["args"], "memory_limit_mib": 900}
    (replicas,) = pool["deployments"]
    assert between(replicas) == (1, 2)
    assert replicas["ray_actor_options"]["resources"] == {"mig_3g": 1}
    assert replicas["health_check_timeout_s"] == 20
    assert replicas["graceful_shutdown_timeout_s"] == 5 * 2 + 20


ENGINES = """\
models:
  chat: {runtime: torch, task: generate, source: m, slo: {timeout_ms: 60000}}
  large:
    {runtime: vllm, task: generate, source: m,
     options: {kv_cache_gib: 4, gpu_memory_utilization: 0.3},
     slo: {timeout_ms: 60000, max_timeout_ms: 90000},
     replicas: {num_gpus: 1}}
scaling:
  pool: {max: 1, num_gpus: 1, memory_mib: 8192, asleep_mib: 100}
"""


def test_replicas_that_stream_get_as_long_to_go_as_a_request_may_ask_for(config) -> None:
    apps = by_name(config(ENGINES))
    drains = {
        name: [d["graceful_shutdown_timeout_s"] for d in apps[name]["deployments"]]
        for name in ("model-chat", "model-large", "headrace-pool")
    }
    assert drains == {"model-chat": [620], "model-large": [110], "headrace-pool": [620]}


def test_the_pool_is_told_what_its_host_has_for_engines_that_sleep(config) -> None:
    pool = by_name(config(ENGINES))["headrace-pool"]["args"]
    assert (pool["asleep_bytes"], pool["runtimes"], pool["engines"]) == (100 << 20, [], ["torch"])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (("max: 2", "max: 3"), "updated"),
        (("memory_mib: 64", "memory_mib: 65"), "restarted"),
        (("[text, device]", "[device]"), "restarted"),
        (("min: 1", "cost_per_hour: 3"), "updated"),
    ],
)
def test_the_number_of_the_pools_replicas_changes_while_they_run(config, change, kind) -> None:
    changed = kinds(config(POOLED), config(POOLED, change))
    assert changed == {"headrace-pool": kind, "headrace-control": "updated"}


def test_serve_itself_starts_no_replica_of_an_optional_model(config):
    text = FILE + "\n"
    optional = text.replace("runtime: synthetic\n", "runtime: synthetic\n    optional: true\n")
    optional = optional.replace("models:\n", "models:\n  other: {runtime: synthetic}\n")
    found = by_name(config(optional))
    assert between(found["model-device"]["deployments"][0]) == (0, 2)
    assert between(found["model-other"]["deployments"][0]) == (1, 1)


def test_a_difference_shows_no_key() -> None:
    key = "hr_Zk3vQ8s-1yXbT0aWm4LrN7cJ5dGf2hUe9iOoKpRtYxB"
    new = {"name": "m", "args": {"token": key, "keys": [f"sha256:{'a' * 64}"]}}
    (found,) = differences({"m": {"name": "m"}}, {"m": new})
    assert "token: unset -> hr_…" in found.reasons
    assert key[3:] not in str(found)


def gateway(**fields) -> GatewaySettings:
    return GatewaySettings.model_validate({"ingress": "haproxy"} | fields)


def test_many_nodes_are_reached_from_everywhere_unless_the_file_says_where():
    assert in_cluster(gateway()).host == "0.0.0.0"
    assert in_cluster(gateway(host="127.0.0.1")).host == "127.0.0.1"
    assert in_cluster(gateway(host="10.0.0.7")).host == "10.0.0.7"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "10.0.0.7"])
def test_on_one_machine_gateways_are_behind_haproxy_alone(host):
    assert serve_host(gateway(host=host), one_machine=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "0.0.0.0"), ("10.0.0.7", "0.0.0.0"), ("::", "::")]
)
def test_haproxies_of_other_nodes_reach_a_gateway(host, expected):
    assert serve_host(gateway(host=host), one_machine=False) == expected


EXAMPLES = Path(__file__).parents[3] / "examples"


def built(example: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of the deployments of `device`; a handle is the name of what it leads to."""
    config = serve_config(load(EXAMPLES / example, here=False, absolute=False))
    application = build_app(
        model(by_name(config)["model-device"]["args"]),
        name="model-device",
        make_deployment_handle=lambda deployment, app: deployment.name,  # type: ignore[arg-type, return-value]
    )
    assert application.ingress_deployment_name == "anchor"
    return {deployment.name: deployment.init_args for deployment in application.deployments}


def test_a_model_is_an_anchor_above_its_replicas() -> None:
    found = built("device.yaml")
    assert set(found) == {"anchor", "model"}
    assert found["anchor"] == (*found["model"], "model")


def test_each_group_is_a_deployment_below_the_same_anchor() -> None:
    found = built("groups.yaml")
    assert set(found) == {"anchor", "model-fast", "model-spare"}
    args, *handles = found["anchor"]
    assert handles == ["model-fast", "model-spare"]
    assert [group["name"] for group in args["groups"]] == ["fast", "spare"]
    (fast,) = found["model-fast"]
    assert (fast["group"], fast["settings"]["options"]["base_ms"]) == ("fast", 4)
