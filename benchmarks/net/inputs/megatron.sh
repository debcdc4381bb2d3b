#!/bin/bash
GPUS_PER_NODE=8
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
GPT_MODEL_ARGS=(
    --num-layers 5
    --hidden-size 96
    --num-attention-heads 6
    --max-position-embeddings 64
    --vocab-size 101
    --make-vocab-size-divisible-by 1
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --fp16
)
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
