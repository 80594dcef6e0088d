"""What an emulator process is told at start."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from typing import Literal

from exaserve.config import load_profile
from exaserve.domain.errors import ConfigError
from exaserve.domain.names import nearest
from exaserve.perfmodel import EngineProfile, profile
from exaserve.perfmodel.constants import ENGINE_RELEASES

__all__ = ["Addressing", "EmulatorConfig", "MetricsSize"]

Addressing = Literal["ports", "addresses"]
MetricsSize = Literal["compact", "real"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorConfig:
    """One process with several emulated replicas.

    Attributes:
        model: shape that sets the speed, a name of :data:`exaserve.models.MODELS` (owner and suffix forgiven).
        served_model_names: names that requests may use; empty takes ``model`` as written.
        replicas: replicas in this process.
        host / port: where the first one listens. Port 0 takes a free one for each.
        addressing: "ports" counts the port up; "addresses" keeps the port and counts the third number of a loopback
            address up (127.0.1.1, 127.0.2.1, …), so that each replica looks like a node of its own.
        control_port: port on ``host`` that reaches all replicas' faults even while they refuse connections; 0 takes a
            free one, None opens none.
        engine: whose step times these are, of its newest release; the interface stays vLLM's.
        hardware / precision / tp / pp / kv_precision / utilization: see :func:`exaserve.perfmodel.profile`.
        profile: measured step times that replace the predicted ones.
        profile_file: file of ``exaserve calibrate`` that has them; its limits count where none are given here.
        seed: answers, lengths and random faults repeat under it.
        speed: everything happens this many times faster.
        max_model_len / max_num_seqs / token_budget / block_size: engine limits, tokens and sequences.
        watermark: share of KV blocks kept free when a prompt is admitted.
        prefix_caching: whether full KV blocks are reused between requests.
        output_tokens_mean: mean of the emulated end of an answer, tokens, where the client does not end it earlier.
        metrics_size: "compact" exports the series that schedulers read; "real" everything that vLLM 0.32 exports.
        load_s: seconds from a restart to ready, before ``speed``; None takes the profile's estimate.
        body_bytes_max: longest request body, bytes.
    """

    model: str = "Llama-3.1-8B"
    served_model_names: tuple[str, ...] = ()
    replicas: int = 1
    host: str = "127.0.0.1"
    port: int = 8001
    addressing: Addressing = "ports"
    control_port: int | None = None
    engine: str = "vllm"
    hardware: str = "A100-80"
    precision: str = "auto"
    kv_precision: str = "auto"
    tp: int = 1
    pp: int = 1
    utilization: float = 0.9
    profile: EngineProfile | None = field(default=None, repr=False)
    profile_file: str = ""
    seed: int = 0
    speed: float = 1.0
    max_model_len: int | None = None
    max_num_seqs: int = 256
    token_budget: int = 8192
    block_size: int = 16
    watermark: float = 0.01
    prefix_caching: bool = True
    output_tokens_mean: float = 256.0
    metrics_size: MetricsSize = "compact"
    load_s: float | None = None
    body_bytes_max: int = 64 * 1024 * 1024

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that requests may use; the first is the one in answers."""
        return self.served_model_names or (self.model,)

    def engine_profile(self) -> EngineProfile:
        """Step times and limits of each replica. ConfigError where the model does not fit or a name is unknown."""
        if self.profile is not None:
            return self.profile
        if self.profile_file:
            measured = load_profile(self.profile_file).engine_profile()
            return replace(measured, max_model_len=self.max_model_len or measured.max_model_len)
        return profile(
            self.hardware,
            self.model,
            self.precision,
            self.tp,
            self.pp,
            kv_precision=self.kv_precision,
            utilization=self.utilization,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            block_size=self.block_size,
            engine=self.engine,
        )

    def check(self) -> None:
        """Raises ConfigError for values that cannot work."""
        if self.engine not in ENGINE_RELEASES:
            raise ConfigError(
                f"Unknown engine {self.engine!r}. {nearest(self.engine, ENGINE_RELEASES)}", param="engine"
            )
        if self.replicas < 1:
            raise ConfigError(f"replicas must be at least 1, not {self.replicas}.", param="replicas")
        if self.speed <= 0:
            raise ConfigError(f"speed must be positive, not {self.speed}.", param="speed")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be in [0, 1), not {self.watermark}.", param="watermark")
        if self.output_tokens_mean < 1:
            raise ConfigError("output_tokens_mean must be at least 1 token.", param="output_tokens_mean")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}.", param="port")
        self.addresses()

    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each replica. ConfigError where they run out of the range."""
        if self.addressing == "ports":
            last = self.port + self.replicas - 1
            if self.port and last > 65535:
                raise ConfigError(
                    f"{self.replicas} replicas from port {self.port} would need port {last}.", param="port"
                )
            return [(self.host, self.port + i if self.port else 0) for i in range(self.replicas)]
        try:
            first = ipaddress.IPv4Address(self.host)
            every = [first + (i << 8) for i in range(self.replicas)]
        except ValueError:
            raise ConfigError(
                f"addressing 'addresses' needs an IPv4 address, not {self.host!r}.", param="host"
            ) from None
        if not all(address.is_loopback for address in every):
            raise ConfigError(
                f"addressing 'addresses' needs loopback addresses for {self.replicas} replicas, from {self.host}.",
                param="host",
            )
        return [(str(address), self.port) for address in every]
