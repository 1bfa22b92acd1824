"""Every form of TF_CONFIG met in the field: understood, or refused in one line."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from trainer.cluster import Cluster
from trainer.config import ClusterConfig
from trainer.errors import ConfigError

A, B, C, D = "a:2222", "b:2222", "c:2222", "d:2222"


def read(tf_config: Any, expected_workers: int | None = None) -> Cluster:
    text = tf_config if isinstance(tf_config, str) else json.dumps(tf_config)
    return Cluster.from_env({"TF_CONFIG": text}, ClusterConfig(expected_workers=expected_workers))


def spec(task: str = "worker/0", **jobs: Any) -> dict[str, Any]:
    role, _, index = task.partition("/")
    return {"cluster": jobs, "task": {"type": role, "index": int(index)}}


def refusal(tf_config: Any, expected_workers: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tf_config, expected_workers)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


# One process


@pytest.mark.parametrize(
    "text", ["", " \n", "{}", '{"cluster": {}}', '{"environment": "cloud"}', '{"task": {}}']
)
def test_no_cluster_means_one_process(text: str) -> None:
    cluster = read(text)
    assert cluster == Cluster.from_env({}, ClusterConfig()) == Cluster()
    assert (cluster.num_workers, cluster.rank, cluster.is_chief) == (1, 0, True)
    assert not cluster.distributed
    assert cluster.tf_config() == {}
    assert cluster.unreachable(0.1) == []
    cluster.require_training_role()


def test_missing_tf_config_is_refused_when_workers_are_expected() -> None:
    with pytest.raises(ConfigError, match=r"expected_workers=2.*TF_CONFIG is not set"):
        Cluster.from_env({}, ClusterConfig(expected_workers=2))
    assert Cluster.from_env({}, ClusterConfig(expected_workers=1)) == Cluster()


def test_expected_workers_names_both_numbers() -> None:
    message = refusal(spec(chief=[A], worker=[B], task="chief/0"), expected_workers=3)
    assert "expected_workers=3" in message
    assert "describes 2" in message
    assert read(spec(chief=[A], worker=[B]), expected_workers=2).num_workers == 2


# Ranks and the chief


@pytest.mark.parametrize(
    ("task", "rank", "address"), [("chief/0", 0, A), ("worker/0", 1, B), ("worker/1", 2, C)]
)
def test_ranks_with_a_chief(task: str, rank: int, address: str) -> None:
    cluster = read(spec(task, chief=[A], worker=[B, C]))
    assert (cluster.rank, cluster.address) == (rank, address)
    assert cluster.is_chief == (task == "chief/0")
    assert cluster.workers == (A, B, C)
    assert cluster.tf_config()["cluster"] == {"chief": [A], "worker": [B, C]}
    assert cluster.tf_config()["task"] == {"type": task[:-2], "index": int(task[-1])}


def test_ranks_without_a_chief() -> None:
    tasks = [read(spec(f"worker/{i}", worker=[A, B])) for i in range(2)]
    assert [t.rank for t in tasks] == [0, 1]
    assert [t.is_chief for t in tasks] == [True, False]
    assert tasks[1].tf_config() == spec("worker/1", worker=[A, B])
    assert tasks[1].describe() == "worker/1 (rank 1 of 2) at b:2222"
    assert tasks[0].distributed


def test_order_of_the_keys_does_not_change_ranks() -> None:
    assert read(spec("worker/0", worker=[B], chief=[A])).workers == (A, B)


@pytest.mark.parametrize("jobs", [{"worker": [A]}, {"chief": [A]}, {"chief": [A], "worker": []}])
def test_cluster_of_one(jobs: dict[str, list[str]]) -> None:
    cluster = read(spec("chief/0" if "chief" in jobs else "worker/0", **jobs))
    assert cluster.is_chief
    assert cluster.num_workers == 1
    assert not cluster.distributed
    assert list(cluster.tf_config()["cluster"].values()) == [[A]]


def test_what_a_tfjob_writes() -> None:
    hosts = [f"mnist-{role}-{i}.train.svc:2222" for role, i in (("chief", 0), ("worker", 0))]
    cluster = read(
        {
            "cluster": {"chief": hosts[:1], "worker": hosts[1:], "evaluator": [D]},
            "task": {"type": "worker", "index": "0"},
            "environment": "cloud",
            "rpc_layer": "grpc",
            "job": {"ignored": True},
        }
    )
    assert (cluster.rank, cluster.num_workers, cluster.evaluators) == (1, 2, (D,))
    assert cluster.tf_config()["task"]["index"] == 0


def test_ipv6() -> None:
    cluster = read(spec("worker/1", worker=["[::1]:2222", "[fe80::2]:2222"]))
    assert cluster.address == "[fe80::2]:2222"


# Roles that do not train


def test_workers_do_not_wait_for_parameter_servers_and_evaluators() -> None:
    cluster = read(spec("worker/1", worker=[A, B], ps=[C], evaluator=[D]))
    assert cluster.workers == (A, B)
    assert (cluster.ps, cluster.evaluators) == ((C,), (D,))
    assert cluster.tf_config()["cluster"] == {"worker": [A, B]}
    cluster.require_training_role()


@pytest.mark.parametrize(
    ("task", "jobs", "what"),
    [
        ("ps/0", {"worker": [A], "ps": [C]}, "parameter server"),
        ("evaluator/0", {"chief": [A], "evaluator": [C]}, "evaluator"),
        ("evaluator/0", {"chief": [A]}, "evaluator"),
    ],
)
def test_ps_and_evaluator_are_recognised_and_refused(
    task: str, jobs: dict[str, list[str]], what: str
) -> None:
    cluster = read(spec(task, **jobs))
    assert not cluster.is_chief
    assert cluster.rank == -1
    assert cluster.address == (C if len(jobs) > 1 else "")
    assert cluster.tf_config() == {}
    assert cluster.describe().startswith(task)
    with pytest.raises(ConfigError, match=f"{what} role is not supported yet"):
        cluster.require_training_role()


@pytest.mark.parametrize(
    "tf_config", [spec("master/0", master=[A], worker=[B]), spec("master/0", worker=[B])]
)
def test_master_is_refused_with_the_fix(tf_config: Any) -> None:
    message = refusal(tf_config)
    assert "Estimator" in message
    assert "'chief'" in message


def test_dynamic_clusters_are_refused() -> None:
    task = {"type": "worker", "index": 1}
    for tf_config in (
        {"sparseCluster": {"worker": {"1": "localhost:23002"}, "ps": []}, "task": task},
        {"cluster": {"worker": {"1": "localhost:23002"}, "ps": []}, "task": task},
    ):
        message = refusal(tf_config)
        assert "train alone" in message
        assert "enableDynamicWorker" in message


# What is wrong is named


@pytest.mark.parametrize(
    ("tf_config", "words"),
    [
        ("{'cluster': {'worker': ['a:1']}}", ("not JSON", "single quotes")),
        ("worker=a:1", ("not JSON", "worker=a:1")),
        ('{"cluster": \n', ("not JSON",)),
        ("[1]", ("[1]", "must be an object")),
        ("null", ("must be an object",)),
        ({"cluster": [A]}, ("cluster=", "must be an object")),
        ({"clusters": {"worker": [A]}}, ("unknown key 'clusters'",)),
        ({"task": {"type": "worker", "index": 0}}, ("without a cluster",)),
        ({"cluster": {"worker": [A, B]}}, ("without a task", "SLURM_PROCID")),
        ({"cluster": {"worker": [A]}, "task": "worker/0"}, ("task=worker/0", "object")),
        ({"cluster": {"worker": [A]}, "task": {"type": "worker"}}, ("task.index=null",)),
        ({"cluster": {"worker": [A]}, "task": {"index": 0}}, ("task.type=None",)),
        ({"cluster": {"worker": [A]}, "task": {"type": "worker", "index": 0.5}}, ("0.5",)),
        ({"cluster": {"worker": [A]}, "task": {"type": "worker", "index": True}}, ("true",)),
        ({"cluster": {"worker": [A]}, "task": {"type": "worker", "index": "x"}}, ("x",)),
        (spec("gpu/0", worker=[A]), ("task.type='gpu'", "chief, worker, ps, evaluator")),
        (spec(worker=[A], gpu=[B]), ("cluster.gpu", "chief, worker, ps, evaluator")),
        (spec(worker="a:1"), ("cluster.worker=a:1", "must be a list")),
        (spec(worker=[A], ps=None), ("cluster.ps=null", "must be a list")),
        (spec(worker=[]), ("no task that trains", "cluster.worker")),
        (spec("ps/0", ps=[A]), ("no task that trains",)),
        (spec("chief/0", chief=[A, B]), ("only one chief",)),
        (spec(worker=[1]), ("cluster.worker[0]=1", "HOST:PORT")),
        (spec(worker=[A, "b"]), ("cluster.worker[1]='b'", "HOST:PORT")),
        (spec(worker=[":1"]), ("':1'", "HOST:PORT")),
        (spec(worker=["a:"]), ("'a:'", "1 to 65535")),
        (spec(worker=["a:0"]), ("'0'", "1 to 65535")),
        (spec(worker=["a:65536"]), ("'65536'", "1 to 65535")),
        (spec(worker=["a:-1"]), ("'-1'", "1 to 65535")),
        (spec(worker=["a:http"]), ("'http'", "1 to 65535")),
        (spec(worker=["grpc://a:1"]), ("without grpc://",)),
        (spec(worker=["a/b:1"]), ("HOST:PORT",)),
        (spec(worker=["a b:1"]), ("HOST:PORT",)),
        (spec(worker=["::1:2222"]), ("[::1]:2222",)),
        (spec("worker/2", worker=[A, B]), ("worker/2", "[worker/0, worker/1]")),
        (spec("worker/-1", worker=[A, B]), ("worker/-1", "not in the cluster")),
        (spec("chief/0", worker=[A, B]), ("chief/0", "not in the cluster")),
        (spec("ps/0", worker=[A, B]), ("ps/0", "not in the cluster")),
        (spec("evaluator/1", worker=[A], evaluator=[B]), ("evaluator/1", "not in")),
        (spec(worker=[A, B, A]), ("cluster.worker[2]='a:2222'", "cluster.worker[0]")),
        (spec(chief=[A], worker=["A:2222"]), ("cluster.worker[0]", "cluster.chief[0]")),
        (spec(worker=[A], ps=[A]), ("cluster.ps[0]", "cluster.worker[0]")),
    ],
)
def test_refused_in_one_line(tf_config: Any, words: tuple[str, ...]) -> None:
    message = refusal(tf_config)
    assert message.startswith("TF_CONFIG")
    for word in words:
        assert word in message


def test_a_large_cluster_still_fits_on_a_line() -> None:
    message = refusal(spec("worker/500", worker=[f"host-{i}:2222" for i in range(500)]))
    assert "500 tasks" in message


# Proxies


def test_proxies_are_bypassed_for_the_clusters_hosts() -> None:
    cluster = read(spec(worker=["a:1", "[fe80::2]:1"], ps=["p:1"]))
    environ = {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": "corp.example, x"}
    line = cluster.bypass_proxies(environ)
    assert line is not None
    assert line.startswith("http_proxy set: added")
    everyone = "corp.example,x,localhost,127.0.0.1,::1,a,fe80::2,p"
    assert environ["no_proxy"] == environ["NO_PROXY"] == everyone
    assert "no_grpc_proxy" not in environ
    assert cluster.bypass_proxies(environ) is None


def test_no_grpc_proxy_is_extended_where_it_is_set() -> None:
    environ = {"https_proxy": "http://p", "no_grpc_proxy": "x"}
    assert read(spec(worker=[A])).bypass_proxies(environ)
    assert environ["no_grpc_proxy"].split(",") == ["x", "localhost", "127.0.0.1", "::1", "a"]


def test_nothing_changes_without_a_proxy_or_a_cluster() -> None:
    for cluster, environ in (
        (read(spec(worker=[A])), {"no_proxy": "x", "http_proxy": ""}),
        (read(""), {"http_proxy": "http://p"}),
    ):
        before = dict(environ)
        assert cluster.bypass_proxies(environ) is None
        assert environ == before


# Peers


def test_unreachable_names_the_peers_that_do_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answering, silent = (f"127.0.0.1:{s.getsockname()[1]}" for s in (there, closed))
        unknown = "no-such-host.invalid:2222"
        too_long = "x" * 70 + ":2222"
        cluster = read(spec(worker=["127.0.0.1:1", answering, silent, unknown, too_long]))
        start = time.monotonic()
        assert cluster.unreachable(2.0) == [silent, unknown, too_long]
        assert time.monotonic() - start < 4
