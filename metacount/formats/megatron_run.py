"""Which of Megatron-LM's arguments run, train, store or report, and leave the model as it is."""

from __future__ import annotations

from metacount.huggingface.config.keys import words

# Whole families of such arguments, by how they begin.
FAMILIES = (
    "--lr-",
    "--adam-",
    "--log-",
    "--tensorboard-",
    "--wandb-",
    "--save-",
    "--load-",
    "--eval-",
    "--train-",
    "--ckpt-",
    "--dist-ckpt-",
    "--recompute-",
    "--overlap-",
    "--no-overlap-",
    "--tp-comm-",
    "--fp8-",
    "--fp4-",
    "--ddp-",
    "--profile-",
    "--exit-",
    "--manual-gc",
    "--num-dataset-",
    "--distributed-",
    "--ft-",
    "--inprocess-",
    "--one-logger-",
    "--muon-",
    "--master-",
    "--rdzv-",
    "--nproc-",
    "--non-persistent-",
    "--cuda-graph-",
    "--logging-",
    "--tokenizer-",
    "--megatron-fsdp-",
    "--straggler-",
    "--otel-",
)
NAMES = words(
    # torchrun
    "nnodes node-rank max-restarts module standalone "
    # batches, data, words
    "micro-batch-size global-batch-size rampup-batch-size step-batch-size-schedule seq-length "
    "decoder-seq-length data-path split data-cache-path data-args-path per-split-data-args-path "
    "valid-data-path test-data-path mock-data vocab-file merge-file tiktoken-pattern "
    "tiktoken-num-special-tokens special-tokens null-tokenizer-eod-id reset-position-ids "
    "reset-attention-mask eod-mask-loss no-create-attention-mask-in-dataloader no-mmap-bin-files "
    "num-workers dataloader-type dataloader-fast-cache-load mid-level-dataset-surplus sft "
    # steps
    "lr min-lr decoupled-lr decoupled-min-lr weight-decay start-weight-decay end-weight-decay "
    "weight-decay-incr-style clip-grad optimizer sgd-momentum seed init-method-std "
    "embedding-init-method-std init-method-xavier-uniform use-cpu-initialization "
    "attention-dropout hidden-dropout loss-scale initial-loss-scale min-loss-scale "
    "loss-scale-window hysteresis calculate-per-token-loss cross-entropy-loss-fusion "
    "cross-entropy-fusion-impl skip-train finetune override-opt-param-scheduler "
    "override-opt_param-scheduler use-checkpoint-opt-param-scheduler "
    "no-check-for-nan-in-loss-and-grad check-for-nan-in-loss-and-grad check-for-spiky-loss "
    "check-for-large-grads rerun-mode moe-aux-loss-coeff moe-z-loss-coeff "
    "moe-router-load-balancing-type moe-router-bias-update-rate moe-input-jitter-eps "
    "moe-router-force-load-balancing "
    # numbers and kernels
    "fp16 bf16 fp8 fp32-residual-connection attention-softmax-in-fp32 grad-reduce-in-bf16 "
    "accumulate-allreduce-grads-in-fp32 main-grads-dtype main-params-dtype exp-avg-dtype "
    "exp-avg-sq-dtype use-precision-aware-optimizer moe-router-dtype use-mcore-models "
    "use-legacy-models transformer-impl attention-backend use-flash-attn no-masked-softmax-fusion "
    "no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm "
    "no-gradient-accumulation-fusion apply-query-key-layer-scaling "
    "no-query-key-layer-scaling moe-grouped-gemm moe-permute-fusion moe-router-fusion "
    "moe-token-dispatcher-type moe-enable-deepep moe-flex-dispatcher-backend "
    "moe-shared-expert-overlap moe-layer-recompute moe-per-layer-logging "
    "enable-experimental deterministic-mode te-rng-tracker use-te-rng-tracker "
    "disable-jit-fuser init-model-with-meta-device trust-remote-code "
    # machines
    "pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
    "num-virtual-stages-per-pipeline-rank microbatch-group-size-per-virtual-pipeline-stage "
    "virtual-pipeline-model-parallel-size context-parallel-size cp-comm-type "
    "expert-model-parallel-size expert-tensor-parallel-size sequence-parallel "
    "use-distributed-optimizer num-distributed-optimizer-instances data-parallel-sharding-strategy "
    "use-megatron-fsdp use-torch-fsdp2 use-custom-fsdp use-tp-pp-dp-mapping use-nccl-ub "
    "nccl-communicator-config-path account-for-embedding-in-pipeline-split "
    "account-for-loss-in-pipeline-split decoder-first-pipeline-num-layers "
    "decoder-last-pipeline-num-layers defer-embedding-wgrad-compute wgrad-deferral-limit "
    "delay-wgrad-compute align-grad-reduce no-align-param-gather optimizer-cpu-offload "
    "optimizer-offload-fraction empty-unused-memory-level local-rank lazy-mpu-init "
    # what is kept and told
    "save load use-dist-ckpt async-save auto-detect-ckpt-format exit-on-missing-checkpoint "
    "no-load-optim no-load-rng no-save-optim no-save-rng timing-log-level timing-log-option "
    "profile use-pytorch-profiler record-memory-history memory-snapshot-path "
    "check-weight-hash-across-dp-replicas-interval"
)


def runs_only(name: str) -> bool:
    """Tell whether an argument is known not to change the model.

    >>> runs_only("--lr-decay-style"), runs_only("--window-size"), runs_only("-m")
    (True, False, True)
    """
    return name.startswith(FAMILIES) or name[2:] in NAMES or not name.startswith("--")
