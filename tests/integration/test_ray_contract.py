"""What we use of Ray that is alpha, underscored or only in its source: all of it, as installed.

No cluster is started. When an upgrade of Ray fails here, the module named in a test is the one to
look at; nothing else of ours touches these names.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import ray.util
from ray import serve
from ray._private import state, worker
from ray._private.node import Node
from ray.actor import ActorHandle
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.experimental import internal_kv
from ray.serve import autoscaling_policy, schema
from ray.serve._private import constants, controller, http_util, replica
from ray.serve._private.common import ReplicaID, RequestMetadata
from ray.serve._private.haproxy import HAProxyApi
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE
from ray.serve.config import AutoscalingConfig, AutoscalingContext, RequestRouterConfig
from ray.serve.generated import serve_pb2
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from deployments.control import ray_env, serve_controller
from deployments.control.ingress import haproxy, haproxy_wrapper
from deployments.control.serve_config import serve_config
from deployments.gateway.http import fast_path
from deployments.process import loopback
from deployments.settings.gateway import GatewaySettings
from deployments.settings.tree import Settings

pytestmark = pytest.mark.integration

RAY = Path(ray.__file__).parent


def parameters(function) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_the_pin_router_finds_what_it_overrides_and_uses():
    assert {"candidate_replicas", "pending_request"} <= parameters(RequestRouter.choose_replicas)
    choose = inspect.signature(RequestRouter._choose_replica_for_request)
    assert list(choose.parameters) == ["self", "pending_request", "is_retry"]
    assert inspect.iscoroutinefunction(RequestRouter._choose_replica_for_request)
    assert "replica_id" in parameters(RequestRouter.on_replica_actor_died)
    for name in ("initialize_state", "update_replicas", "on_replica_actor_died"):
        assert callable(getattr(RequestRouter, name))
    assert isinstance(inspect.getattr_static(RequestRouter, "_replicas_updated_event"), property)
    for name in ("replica_metadata", "replica_id", "node_id"):
        assert isinstance(inspect.getattr_static(RunningReplica, name), property)
    assert "unique_id" in {f.name for f in dataclasses.fields(ReplicaID)}
    assert "metadata" in {f.name for f in dataclasses.fields(PendingRequest)}
    assert "session_id" in {f.name for f in dataclasses.fields(RequestMetadata)}
    assert {"request_router_class", "request_router_kwargs"} <= set(
        RequestRouterConfig.model_fields
    )


def test_serves_controller_lists_applications_as_the_registry_reads_them():
    def overview(name: str, status: int, *deployments: str) -> bytes:
        message = serve_pb2.StatusOverview(name=name)
        message.app_status.status = status
        for each in deployments:
            message.deployment_statuses.deployment_status_infos.add(name=each)
        return bytes(message.SerializeToString())

    states = serve_pb2.ApplicationStatus
    listed = [
        overview("model-a", states.Value("APPLICATION_STATUS_RUNNING"), "anchor", "model"),
        overview("model-theirs", states.Value("APPLICATION_STATUS_RUNNING"), "app"),
        overview("model-b", states.Value("APPLICATION_STATUS_DEPLOY_FAILED")),
        overview("model-c", states.Value("APPLICATION_STATUS_DELETING")),
        overview("gateway", states.Value("APPLICATION_STATUS_RUNNING")),
    ]
    assert serve_controller.model_names(listed) == {"a", "b"}
    for method in ("list_serve_statuses", "get_serve_instance_details"):
        assert callable(getattr(controller.ServeController, method))
    assert "target_num_replicas" in schema.DeploymentDetails.model_fields


def test_serves_controller_says_which_process_it_is_and_its_handle_whether_it_runs():
    assert callable(controller.ServeController.get_pid)
    assert callable(ActorHandle._get_local_state)
    assert {"ALIVE", "RESTARTING", "DEAD"} <= set(ActorTableData.ActorState.keys())
    assert "no_restart" in parameters(ray.kill)


def test_the_store_of_the_cluster_takes_what_tenants_are_published_with():
    client = ray._raylet.InnerGcsClient
    for name in ("internal_kv_put", "internal_kv_get", "internal_kv_del", "internal_kv_keys"):
        assert "namespace=None, timeout=None" in getattr(client, name).__doc__
    assert callable(internal_kv.internal_kv_get_gcs_client)


def test_serves_controller_takes_one_policy_for_an_application_and_copies_its_numbers():
    """As `copy_targets` relies on: what is left out keeps its target, whatever waits."""
    assert "autoscaling_policy" in schema.ServeApplicationSchema.model_fields
    (app,) = [
        each
        for each in serve_config(settings_of_one_model(), one_machine=True)["applications"]
        if each["name"] == "model-m"
    ]
    schema.ServeApplicationSchema.model_validate(app)
    wants: dict[str, int] = {}

    def policy(contexts):
        return {key: wants[key] for key in contexts if key in wants}, {}

    wrapped = autoscaling_policy._apply_app_level_autoscaling_config(policy)
    bounds = AutoscalingConfig(**app["deployments"][0]["autoscaling_config"])

    def decided(running: int, target: int, queued: int = 0) -> dict[str, int]:
        context = AutoscalingContext(
            deployment_id="id", deployment_name="model", app_name="model-m",
            current_num_replicas=running, target_num_replicas=target, running_replicas=[],
            total_num_requests=queued, total_queued_requests=queued, aggregated_metrics={},
            raw_metrics={}, capacity_adjusted_min_replicas=0, capacity_adjusted_max_replicas=4,
            policy_state={}, last_scale_up_time=None, last_scale_down_time=None, current_time=0.0,
            config=bounds,
        )  # fmt: skip
        assert (context.app_name, context.deployment_name) == ("model-m", "model")
        return wrapped({"id": context})[0]

    assert decided(0, 0, queued=3) == decided(0, 5) == decided(2, 2, queued=9) == {}
    wants["id"] = 3
    assert decided(1, 1) == decided(0, 0) == {"id": 3}
    wants["id"] = 0
    assert decided(1, 1) == {"id": 0}


def settings_of_one_model() -> Settings:
    return Settings.model_validate({"models": {"m": {"runtime": "synthetic"}}})


def test_ray_says_what_a_cluster_has_or_may_come_to_have():
    found = inspect.signature(state.state.get_max_resources_from_cluster_config)
    assert not found.parameters
    assert "node_id" in schema.ReplicaDetails.model_fields
    assert {"replica_id", "state"} <= set(schema.ReplicaDetails.model_fields)
    assert "no_restart" in parameters(ray.kill)


def test_a_node_starts_its_monitors_where_the_host_leaves_them_out():
    assert "self.start_monitor()" in inspect.getsource(Node.start_head_processes)
    assert "self.start_log_monitor()" in inspect.getsource(Node.start_ray_processes)


def test_handles_take_the_options_of_pinned_calls():
    assert parameters(DeploymentHandle.options) >= {"method_name", "session_id"}
    assert parameters(serve.get_deployment_handle) >= {"deployment_name", "app_name"}


def test_the_gateway_can_be_a_raw_asgi_app_behind_our_middleware():
    assert "__serve_build_asgi_app__" in inspect.getsource(replica)
    assert "configure_http_middlewares" in dir(http_util)
    (middleware,) = fast_path.middlewares()
    assert middleware.cls is fast_path.FastPath


def test_replicas_are_asked_for_their_metadata_and_let_to_end_asynchronously():
    source = inspect.getsource(replica)
    assert "record_replica_metadata" in source
    assert "__del__" in source
    assert "check_health" in source


def test_the_replica_opens_its_call_server_where_the_loopback_module_looks():
    assert f'add_port_to_grpc_server(self._server, "{loopback.EVERY_INTERFACE}")' in (
        inspect.getsource(replica)
    )
    assert callable(replica.add_port_to_grpc_server)
    assert callable(ray.util.get_node_ip_address)


def test_haproxy_is_called_as_our_program_expects():
    source = inspect.getsource(HAProxyApi._start_and_wait_for_haproxy)
    assert 'args = [haproxy_bin, "-db", "-f", self.config_file_path]' in source
    assert "option abortonclose" in HAPROXY_CONFIG_TEMPLATE
    assert constants.RAY_SERVE_HAPROXY_LOG_TARGET == haproxy_wrapper._SYSLOG
    # How a manager knows its own processes: by the file among their arguments.
    assert "config_file_path.encode() in" in inspect.getsource(HAProxyApi._is_our_haproxy)


def test_our_program_takes_what_serve_writes(tmp_path):
    assert haproxy.problem(str(haproxy.program(tmp_path, tmp_path)), tmp_path) is None


def test_our_program_knows_the_ray_that_is_installed():
    assert ray.__version__.startswith(f"{haproxy_wrapper.KNOWN_RAY}.")


def test_serve_reads_every_variable_that_we_set(tmp_path):
    source = inspect.getsource(constants)
    env = ray_env.local_environment(GatewaySettings(ingress="haproxy"), tmp_path)
    own = {"RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT"}
    names = {name for name in env if name.startswith("RAY_SERVE_")} | own
    assert [name for name in sorted(names) if f'"{name}"' not in source] == []


def test_ray_reads_every_variable_that_we_set():
    raylet = (RAY / "core/src/ray/raylet/raylet").read_bytes()
    assert b"prestart_worker_first_driver" in raylet
    assert b"worker_niceness" in raylet
    assert b"task_events_report_interval_ms" in raylet
    assert b"RAY_AUTH_MODE" in raylet
    assert b"RAY_AUTH_TOKEN" in raylet
    for name, file in (
        ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "_private/ray_constants.py"),
        ("RAY_DEDUP_LOGS", "_private/ray_constants.py"),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "_private/accelerators/accelerator.py"),
        ("RAY_USAGE_STATS_ENABLED", "_common/usage/usage_constants.py"),
    ):
        assert f'"{name}"' in (RAY / file).read_text()


SHOW = """
import json
from ray.serve._private import constants as c
print(json.dumps({n: getattr(c, n) for n in dir(c) if n.startswith("RAY_SERVE_")}, default=str))
"""


@pytest.mark.parametrize("ingress", ["haproxy", "direct"])
def test_the_environment_makes_serve_what_we_mean(ingress, tmp_path):
    env = ray_env.local_environment(GatewaySettings(ingress=ingress, drain_s=30), tmp_path)
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env=os.environ | env, capture_output=True, check=True
    )
    found = json.loads(shown.stdout)
    with_haproxy = ingress == "haproxy"
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] is with_haproxy
    assert found["RAY_SERVE_ENABLE_DIRECT_INGRESS"] is with_haproxy
    assert found["RAY_SERVE_HAPROXY_METRICS_ENABLED"] is False
    assert found["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] is False
    assert found["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] is False
    if with_haproxy:
        assert found["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"] == ray_env.HARD_STOP_S
        assert found["RAY_SERVE_PORT_QUARANTINE_S"] == 690


def test_the_list_of_applications_fits_serves_rest_schema():
    settings = Settings.model_validate({"models": {"device": {"runtime": "synthetic"}}})
    parsed = schema.ServeDeploySchema.model_validate(serve_config(settings))
    names = {"gateway", "headrace-control", "model-device"}
    assert {app.name for app in parsed.applications} == names
    details = schema.ApplicationDetails.model_fields
    assert {"status", "message"} <= set(details)
    assert {"RUNNING", "DEPLOY_FAILED"} <= {s.value for s in schema.ApplicationStatus}


def test_haproxy_passes_small_chunks_on_at_once_and_lets_a_stream_be_silent():
    assert constants.RAY_SERVE_HAPROXY_TCP_NODELAY
    assert constants.RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S is None
    assert constants.RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S >= 3600
    assert "http-buffer-response" not in HAPROXY_CONFIG_TEMPLATE


def test_what_rays_handler_of_sigterm_calls_can_be_replaced():
    """`deployments.gateway.ending` does."""
    handler = inspect.getsource(worker.Worker.main_loop)
    assert "set_sigterm_handler(sigterm_handler)" in handler
    assert "raise_sys_exit_with_custom_error_message(" in handler
    assert callable(vars(worker)["raise_sys_exit_with_custom_error_message"])
