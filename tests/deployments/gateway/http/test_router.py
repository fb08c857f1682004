"""Which path leads where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deployments.gateway.http import request_head
from deployments.gateway.http.request_head import Route, match
from deployments.settings.gateway import OWN_PATHS, GatewaySettings

GET = ("GET", "HEAD")


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2", Route("server_metadata", GET)),
        ("/healthz", Route("live", GET)),
        ("/v1/embeddings", Route("embeddings", ("POST",))),
        ("/v2/models/m.1-a", Route("model_metadata", GET, "m.1-a")),
        ("/v2/models/m/", Route("model_metadata", GET, "m")),
        ("/v2/models/m/ready", Route("model_ready", GET, "m")),
        ("/v2/models/m/infer", Route("infer", ("POST",), "m")),
        ("/v2/models/m/versions/2/infer", Route("infer", ("POST",), "m", "2")),
        ("/v2/models/m/versions/2", Route("model_metadata", GET, "m", "2")),
        ("/v2/models/m/versions/2/ready", Route("model_ready", GET, "m", "2")),
        ("/v2/models/versions/infer", Route("infer", ("POST",), "versions")),
        ("/v2/systemsharedmemory/status", Route("region_status", GET)),
        ("/v2/systemsharedmemory/unregister", Route("region_unregister", ("POST",))),
        (
            "/v2/systemsharedmemory/region/a%2Fb/register",
            Route("region_register", ("POST",), region="a/b"),
        ),
        ("/v2/systemsharedmemory/region/r/status", Route("region_status", GET, region="r")),
        ("/v2/cudasharedmemory/region/r/register", Route("cuda_register", ("POST",), region="r")),
        ("/v2/models/stats", Route("all_statistics", GET)),
        ("/v2/models/m/stats", Route("model_statistics", GET, "m")),
        ("/v2/models/m/versions/2/stats", Route("model_statistics", GET, "m", "2")),
        ("/v2/models/m/config", Route("model_config", GET, "m")),
        ("/v2/models/m/versions/2/config", Route("model_config", GET, "m", "2")),
        ("/v1/models/m", Route("openai_model", GET, "m")),
        ("/v1/models/a/b", Route("openai_model", GET, "a/b")),
        ("/v1/models/a%2Fb", Route("openai_model", GET, "a/b")),
        ("/v1/models/m:sql", Route("openai_model", GET, "m", adapter="sql")),
        ("/v1/models/m:predict", Route("predict", ("POST",), "m")),
        ("/v1/models/m%3Apredict", Route("predict", ("POST",), "m")),
        ("/v2/models/%6D.1/versions/%32/infer", Route("infer", ("POST",), "m.1", "2")),
    ],
)
def test_a_path_of_the_surface_leads_to_its_endpoint(path: str, route: Route) -> None:
    assert match(path) == route


@pytest.mark.parametrize(
    "path",
    ["", "/", "v2", "/v2/", "/v2/models", "/v2/models/", "/v2/models//infer",
     "/v2/models/m/infer/", "/v2/models/m/x", "/v2/models/m/versions", "/v2/models/m/versions/",
     "/v2/models/m/versions//infer", "/v2/models/m/versions/2/infer/x", "/v1/models/",
     "/v1/models/:predict", "/v1/models/m:", "/v1/models/m:predict:x", "/v1/models/m:a/b",
     "/v1/models//b", "/v1/models/a/",
     "/V2", "/metrics/", "/%61dmin/status", "/adm%69n/keys/revoke", "/%6Detrics", "/v2/model%73/m",
     "/v2/systemsharedmemory", "/v2/systemsharedmemory/region/r", "/v2/systemsharedmemory/register",
     "/v2/systemsharedmemory/region//status", "/v2/systemsharedmemory/region/a/b/status",
     "/v2/cudasharedmemory/region/r/x", "/v2/models/m/%69nfer", "/v2/models/a%2Fb"],
)  # fmt: skip
def test_any_other_path_leads_nowhere(path: str) -> None:
    assert match(path) is None


@given(st.text())
def test_no_text_breaks_it(path: str) -> None:
    for each in (path, "/v2/models/" + path, "/v1/models/" + path):
        found = match(each)
        assert found is None or found.methods


def test_no_prefix_hides_a_path_of_ours() -> None:
    first = {path.split("/")[1] for path in request_head._FIXED}
    assert first <= OWN_PATHS
    for taken in sorted(OWN_PATHS - {"-"}):
        with pytest.raises(ValidationError, match="own paths"):
            GatewaySettings.model_validate({"path_prefix": f"/{taken}/x"})
    assert GatewaySettings.model_validate({"path_prefix": "/v1x/v1"}).path_prefix == "/v1x/v1"
