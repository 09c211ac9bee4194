"""The tables of a run's TOML: what can be set, in which bounds, with which default and why.

Every default is stated here and nowhere else. How a configuration is put together from its sources is in runconfig.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from appliance.types import Branch, Credit

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def _number(value: object) -> object:
    """Digits as the number they are: a choice of numbers takes text from the environment and the command line too."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


class Section(BaseModel):
    """A table of the TOML; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(Section):
    """Which policy is trained."""

    path: str = Field("pocket", description="`pocket`, `smollm2`, or the folder of a local Hugging Face model")
    renderer: str = Field(
        "auto",
        description="`auto`: a family of the renderers package where it writes as the model's template does, else the "
        "template; `template`; or a family's name",
    )
    quantization: Literal["nf4", "none"] = Field(
        "nf4", description="how the trainer holds the base; the sampler serves the same values"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="what the trainer computes in; auto: float32 on a CPU, bfloat16 on a GPU"
    )
    lora_rank: Annotated[Literal[8, 16, 32, 64], BeforeValidator(_number)] = Field(
        32, description="rank of the adapter; a rank vLLM serves"
    )


class TasksSection(Section):
    """Which tasks are practised and which are held out."""

    pack: str = Field("pocket", description="name of a pack under data/, or a folder in Harbor's layout")
    families: tuple[str, ...] = Field((), description="families of the pack that are used; empty: all of them")
    lesson_split: str = Field(
        "lesson", description="split that the teacher shows; where a pack has none, the train split"
    )
    train_split: str = Field("train", description="split that training draws from")
    held_out_split: str = Field("held-out", description="split that evaluation uses; never trained on")


class EngineSection(Section):
    """The sampler, a child process."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where an NVIDIA GPU is found")
    max_model_len: Positive = Field(2048, description="tokens of context a call may use, answer included")
    replicas: Positive = Field(1, description="engines that share the calls; on GPUs each has its own")
    weights: Literal["dequantised", "original", "nf4"] = Field(
        "dequantised",
        description="what the engine serves: the trainer's NF4 values, dequantised; the base as it was, whose gap to "
        "the trainer is in every step's logprob difference; or NF4 itself (vLLM's bitsandbytes plugin, in bfloat16)",
    )
    sleep: bool = Field(False, description="give the GPU to the trainer while a step is trained (vLLM's sleep mode)")
    kv_cache_gib: float = Field(1.0, gt=0, description="GiB of key/value cache")
    threads: Positive = Field(1, description="CPU threads of the sampler; harness processes need the other cores")
    startup_deadline_s: Positive = Field(240, description="seconds until the engine must answer")
    call_deadline_s: Positive = Field(120, description="seconds after which an unanswered call counts as hung")

    @property
    def resolved_device(self) -> Literal["cpu", "cuda"]:
        """`device`, with auto decided by whether the NVIDIA driver shows a GPU."""
        if self.device != "auto":
            return self.device
        return "cuda" if Path("/proc/driver/nvidia/gpus").exists() else "cpu"


class RolloutSection(Section):
    """One harness launch on one task."""

    parallel: Positive = Field(6, description="rollouts at once")
    timeout_s: Positive = Field(60, description="wall-clock seconds a rollout's harness may run")
    grade_timeout_s: Positive = Field(30, description="wall-clock seconds its grader may run")
    max_calls: Positive = Field(8, description="model calls a rollout may make")
    max_tokens: Positive = Field(96, description="tokens one answer may have")
    temperature: float = Field(1.0, gt=0, description="sampling temperature; logprobs are recorded at it")
    rendering: Literal["graft", "template"] = Field(
        "graft", description="graft: echoed turns keep their sampled ids; template: every prompt is rendered anew"
    )
    retries: int = Field(1, ge=0, description="times a rollout is tried again after a failure that is not the policy's")
    memory_mb: Positive = Field(1024, description="MiB of memory a sandbox may use")
    pids: Positive = Field(128, description="processes a sandbox may have")
    cpus: float = Field(2.0, gt=0, description="cores a sandbox may use")
    disk_mb: Positive = Field(512, description="MiB that workspace and HOME may hold together; counted as memory")
    files: Positive = Field(100_000, description="files and folders that workspace and HOME may hold together")
    idle_s: int = Field(0, ge=0, description="seconds of doing nothing after which a harness is ended; 0: never")
    grace_s: int = Field(2, ge=0, description="seconds from SIGTERM to SIGKILL when a harness is ended")
    hosts: tuple[str, ...] = Field((), description="more Podman services, unix:///… or ssh://…: see docs/scale.md")
    ssh_key: str = Field("", description="key file for hosts by ssh://; empty: as the user's ssh settings say")
    ssh_config: str = Field("", description="settings file for ssh (its -F); empty: the user's own")


class ColdstartSection(Section):
    """The first policy, made from a teacher's successful rollouts."""

    teacher: str = Field(
        "scripted",
        description="`scripted`: the tasks' own solutions; or the URL of an OpenAI- or Anthropic-compatible endpoint",
    )
    teacher_wire: Literal["chat", "messages"] = Field("chat", description="protocol of a teacher URL")
    teacher_model: str = Field("", description="model name sent to a teacher URL")
    imports: tuple[str, ...] = Field(
        (), description="files (ATIF, or JSONL of OpenAI messages) whose conversations are lessons too"
    )
    rollouts: Positive = Field(48, description="teacher rollouts a harness")
    steps: Positive = Field(400, description="optimiser steps of the cold start")
    learning_rate: float = Field(1e-3, gt=0, description="peak learning rate of the cold start")


class JudgeSection(Section):
    """Who judges the rubric part of hybrid tasks. Without a URL or an engine they are graded by their code alone."""

    url: str = Field("", description="OpenAI- or Anthropic-compatible endpoint of the judge; empty: see judge.engine")
    wire: Literal["chat", "messages"] = Field("chat", description="protocol of the judge's URL")
    model: str = Field("", description="model name sent to the judge")
    key_env: str = Field("", description="environment variable that holds the judge's key")
    engine: str = Field(
        "",
        description="instead of a URL: `run`, the run's own engine (its model without the adapter); or the folder of a "
        "local model, served by an engine of the judge's own",
    )
    max_model_len: Positive = Field(8192, description="tokens of context of the judge's own engine, answer included")
    max_tokens: Positive = Field(4096, description="tokens one vote may have; of an engine's context a quarter at most")
    votes: Positive = Field(3, description="votes a rollout; each criterion takes their median")
    parallel: Positive = Field(8, description="votes asked for at once")
    max_calls: int = Field(
        0, ge=0, description="calls to the judge from a start of the run to its end; then hybrid tasks fail; 0: any"
    )
    timeout_s: float = Field(120.0, gt=0, description="seconds for one vote")


class TrainSection(Section):
    """Tree-GRPO and tree-PPO. docs/training.md says what each algorithm and loss computes."""

    algorithm: Literal["grpo", "dr_grpo", "rloo", "ppo"] = Field(
        "grpo", description="where advantages come from: the group's rewards (three ways), or a critic (ppo)"
    )
    loss: Literal["clip_higher", "masked_importance", "gspo", "cispo"] = Field(
        "clip_higher", description="what is done with the probability ratio and the importance weight"
    )
    steps: int = Field(8, ge=0, description="optimiser steps (batches of groups)")
    groups: Positive = Field(8, description="(task, harness) groups a step; train.harness_weights shares them")
    group_size: int = Field(8, ge=2, description="rollouts a group")
    learning_rate: float = Field(3e-4, gt=0, description="peak learning rate of the adapter")
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises to its peak")
    final_rate_share: Share = Field(1.0, description="share of the peak rate left at the last step; it falls linearly")
    negative_weight: Share = Field(1.0, description="factor on negative advantages: below 1, failures push down less")
    minibatches: Positive = Field(1, description="optimiser updates a batch; rollouts are never split")
    clip_low: float = Field(0.2, gt=0, description="lower clip of the probability ratio")
    clip_high: float = Field(0.28, gt=0, description="upper clip of the probability ratio (DAPO's clip-higher)")
    gspo_clip_low: float = Field(3e-4, gt=0, description="lower clip of a rollout's mean ratio, for loss = gspo")
    gspo_clip_high: float = Field(4e-4, gt=0, description="upper clip of a rollout's mean ratio, for loss = gspo")
    max_importance: float = Field(2.0, gt=0, description="cap of the importance weight against the sampler")
    mask_low: float = Field(0.5, gt=0, description="importance below which loss = masked_importance drops a token")
    mask_high: float = Field(5.0, gt=0, description="importance above which loss = masked_importance drops a token")
    kl_weight: float = Field(0.0, ge=0, description="weight of the KL (k2) to version 0; 0 computes none")
    overlong_soft: int = Field(0, ge=0, description="sampled tokens of a rollout from which its reward sinks")
    overlong_hard: int = Field(0, ge=0, description="sampled tokens at which 1 has been taken off; 0 takes nothing off")
    gae_gamma: float = Field(1.0, gt=0, le=1, description="ppo: discount a sampled token")
    gae_lambda: Share = Field(1.0, description="ppo: 1 trusts the reward alone, 0 the critic's next value alone")
    credit_order: Literal["time", "path"] = Field(
        "time", description="ppo: credit crosses a rollout's branches in time, or stays on each root-to-leaf path"
    )
    value_learning_rate: float = Field(1e-3, gt=0, description="ppo: learning rate of the critic")
    value_clip: float = Field(0.2, ge=0, description="ppo: how far a value may move a batch; 0 for any distance")
    value_updates: Positive = Field(4, description="ppo: the critic's passes over a batch")
    value_warmup_steps: int = Field(1, ge=0, description="ppo: first steps in which the critic alone learns")
    parity_alarm: float = Field(
        0.1, ge=0, description="mean |logprob trainer − sampler|, nats a harness, that is warned of; 0 never warns"
    )
    parity_stop: float = Field(0.5, ge=0, description="the same, that stops the run before its step; 0 never stops")
    flat_steps: Positive = Field(3, description="steps in a row without a useful group that are called out loudly")
    harness_shares: Literal["weights", "solve_rate"] = Field(
        "weights", description="groups a harness: by harness_weights, or more where about half of the tasks are solved"
    )
    harness_weights: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (), description="weight of each of `harnesses`, in their order; empty: all alike"
    )
    curriculum: Literal["none", "solve_rate"] = Field(
        "none", description="tasks: all alike, or those less often that are never or always solved (in each harness)"
    )
    curriculum_least: Share = Field(
        0.1, description="curriculum: how often such a task comes, beside one that is solved half of the time"
    )
    tensorboard: bool = Field(False, description="write the metrics as TensorBoard files under the run's folder too")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient norm above which a step is scaled down")
    step_deadline_s: Positive = Field(
        3600, description="seconds after which a trainer that has not finished counts as hung"
    )
    row_tokens: Positive = Field(4096, description="tokens of packed tree computed at once")
    checkpointing: bool = Field(
        False, description="compute a layer's activations again for its gradient: a third more work, far less memory"
    )
    lean_heap: bool = Field(
        False, description="give every freed block back to the system: on a CPU less memory, and about a third slower"
    )
    optimizer: Literal["auto", "adamw", "adamw8bit", "paged_adamw8bit"] = Field(
        "auto",
        description="auto: adamw on a CPU, adamw8bit on a GPU; paged: they move to the host when GPU memory is short",
    )
    ranks: int = Field(0, ge=0, description="processes that share a step's trees; 0: one a local GPU, one on a CPU")
    ahead: Annotated[Literal[0, 1], BeforeValidator(_number)] = Field(
        0, description="steps that rollouts may be ahead of training: 1 overlaps both, each call one version staler"
    )
    keep_last: Positive = Field(2, description="newest versions whose optimiser state is kept to resume from")
    keep_adapters: int = Field(0, ge=0, description="newest adapters kept besides the best and version 0; 0 keeps all")
    refills: int = Field(0, ge=0, description="rounds in which groups of equal rewards are replaced by new ones")

    @property
    def least_weight(self) -> float | None:
        """The least weight of a task in a harness; None without a curriculum."""
        return self.curriculum_least if self.curriculum == "solve_rate" else None


class BranchesSection(Section):
    """How each kind of branch is trained, and when a tree counts as broken. docs/trees.md argues for the defaults."""

    compaction: Credit = Field(Credit.INCLUDE, description="calls that write or follow a summary of the history")
    sub_agent: Credit = Field(Credit.INCLUDE, description="calls of a sub-agent")
    parallel: Credit = Field(Credit.INCLUDE, description="calls sent while another call on the same history ran")
    auxiliary: Credit = Field(Credit.LEAVE_OUT, description="side calls whose answer never comes back, such as titles")
    max_leaves: Positive = Field(32, description="leaves above which a rollout's tree is left out as over-branched")

    def credit(self, branch: Branch) -> Credit:
        """How calls of this label are trained; a continuation always is."""
        if branch is Branch.CONTINUATION:
            return Credit.INCLUDE
        return Credit(getattr(self, branch))


class EvaluationSection(Section):
    """Pass@1 on held-out tasks, before and after."""

    enabled: bool = Field(True, description="whether the run evaluates before and after training")
    attempts: Positive = Field(1, description="rollouts a held-out task and harness")
    max_tasks: int = Field(0, ge=0, description="held-out tasks used; 0 means all")


class RecordSection(Section):
    """How long what is kept of runs that have ended, looked at whenever a run is created; and room on the disk."""

    keep_bodies_days: float = Field(0, ge=0, description="days raw request and response bodies are kept; 0: for ever")
    keep_runs_days: float = Field(0, ge=0, description="days a whole run is kept in the record; 0: for ever")
    keep_logs_days: float = Field(0, ge=0, description="days the logs of runs are kept; 0: for ever")
    min_free_gib: float = Field(
        1.0, ge=0, description="GiB of free disk below which a run takes no new rollouts and drains; 0: not looked at"
    )
