from __future__ import annotations

from loadtests.benches import scaling_churn
from loadtests.benches.scaling_churn import Churn, Clients


class Answer:
    def __init__(self, status: int, data: list[float]) -> None:
        self.status_code, self.text, self._data = status, "told", data

    def json(self) -> dict[str, object]:
        return {"outputs": [{"data": self._data}]}


class Http:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def post(self, url: str, json: object) -> Answer:
        return self._answer


def test_only_the_right_answer_counts():
    churn = Churn()
    clients = Clients("http://here", churn)
    clients._infer(Http(Answer(200, [6.0])))  # type: ignore[arg-type]
    for wrong in (Answer(503, [6.0]), Answer(200, [5.0])):
        try:
            clients._infer(Http(wrong))  # type: ignore[arg-type]
        except ValueError:
            continue
        raise AssertionError("a wrong answer was taken")
    assert churn.answered == 1


def test_what_is_reported_is_what_was_seen():
    churn = Churn(failures=["503"], settled_s=[3.0, 1.0, 2.0])
    assert (churn.failed, churn.settle_s) == (1, 2.0)
    assert Churn().settle_s == 0.0


def test_its_settings_scale_between_one_and_several():
    models = scaling_churn.settings()["models"]
    assert {name: m["replicas"]["max"] for name, m in models.items()} == scaling_churn.MOST
    assert scaling_churn.settings()["gateway"]["replicas"] == 2
