#!/usr/bin/env bash
# On a machine with a CUDA GPU: correctness first, then speed. Run in an environment with `pip install -e '.[dev]'`
# and, for the second half, vLLM. Every step says what it is; the first that fails ends the check.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
OUT=${OUT:-$(mktemp -d)}
export HF_HUB_OFFLINE=1
step() { printf '\n== %s\n' "$*"; }
small=(num_updates=8 eval.every=8 train.checkpoint_every=8 eval.num_problems=16 run.device=cuda "run.outputs=$OUT")

step "the GPU"
$PYTHON -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name(0), torch.version.cuda)'

step "torch engine and FSDP2 agree: fp32 to rounding, bf16 by R3"
$PYTHON -m minirl.cli doctor run.device=cuda engine.numerics=fp32 model.initializer_range=0.15 --plot "$OUT/torch_fp32.png"
$PYTHON -m minirl.cli doctor run.device=cuda engine.numerics=bf16 model.initializer_range=0.15 --plot "$OUT/torch_bf16.png"

step "a run on the GPU: live, then R3 at N=4 with bf16 training"
$PYTHON -m minirl.cli run "${small[@]}"
$PYTHON -m minirl.cli run "${small[@]}" num_mini_batches=4 algo.routing=r3 train.compute_dtype=bfloat16

step "the experts of a layer: the grouped product is the loop over experts, in fp32 and bf16"
$PYTHON - <<'PY'
import torch
from transformers.integrations.moe import grouped_mm_experts_forward

from minirl.compose import load
from minirl.models.experts import sorted_loop
from minirl.models.load import build

experts = build(load([]).model, vocab_size=20, checkpoint=None).model.layers[0].mlp.experts
draw = torch.Generator().manual_seed(0)
hidden, weights = torch.randn(256, 64, generator=draw), torch.rand(256, 4, generator=draw)
chosen = torch.rand(256, 16, generator=draw).topk(4).indices
expected = sorted_loop(experts, hidden, chosen, weights)
for dtype, bound in ((torch.float32, 1e-2), (torch.bfloat16, 3e-2)):  # fp32 may be computed in TF32
    moved = experts.to("cuda", dtype)
    with torch.no_grad():
        found = grouped_mm_experts_forward(moved, hidden.to("cuda", dtype), chosen.cuda(), weights.to("cuda", dtype))
    error = float((found.float().cpu() - expected).norm() / expected.norm())
    print(dtype, f"relative difference {error:.1e}")
    assert error < bound
PY

step "the trainer rests in host memory, checkpoints are written beside training, the run goes on from one"
scale=(train.offload=true train.async_checkpoints=true train.compute_dtype=bfloat16 train.activation_checkpointing=true)
$PYTHON -m minirl.cli run "${small[@]}" "${scale[@]}" run.group=scale
$PYTHON -m minirl.cli run "${small[@]}" "${scale[@]}" run.group=scale num_updates=16
rest=$(ls -d "$OUT"/sweeps/scale/*-s0)
$PYTHON -m minirl.cli export "$rest" --to hf --out "$OUT/exported"
$PYTHON -c 'import sys; from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained(sys.argv[1])' "$OUT/exported"
gpus=$($PYTHON -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" -ge 2 ]; then
  step "two GPUs: shards, then replicas; their first gradient norms beside those of one GPU"
  two() { $PYTHON -m torch.distributed.run --standalone --nproc_per_node=2 -m minirl.run "${small[@]}" "run.group=$1" "${@:2}"; }
  $PYTHON -m minirl.cli run "${small[@]}" run.group=one
  two shards
  two replicas train.num_replicas=2
  for group in one shards replicas; do
    head -n 1 "$OUT"/sweeps/$group/*-s0/metrics.jsonl | grep -o '"optim/grad_norm": [^,]*' | sed "s/^/$group /"
  done
fi

if $PYTHON -c 'import vllm' 2>/dev/null; then
  step "vLLM: weights, routes and log-probabilities are the trainer's"
  for numerics in bf16 fp8; do
    $PYTHON -m minirl.cli doctor run.device=cuda engine=vllm "engine.numerics=$numerics" --plot "$OUT/vllm_$numerics.png" ||
      echo "engine.numerics=$numerics: see above"
  done
  step "vLLM: a run with R3, and one that sleeps while the trainer updates"
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm algo.routing=r3 num_mini_batches=4
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm engine.sleep=true seed=1
  step "vLLM in processes of its own on the trainer's GPU: weights by CUDA IPC, in bf16 and fp32, awake and asleep"
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm engine.placement=shared engine.numerics=fp32 algo.routing=r3 seed=6
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm engine.placement=shared engine.sleep=true algo.routing=r3 seed=7
  ranks() { $PYTHON -m torch.distributed.run --standalone --nproc_per_node="$1" -m minirl.run "${small[@]}" engine=vllm "${@:2}"; }
  if [ "$gpus" -ge 2 ]; then
    step "vLLM: two ranks that share one engine, asleep during updates"
    ranks 2 engine.tensor_parallel=2 engine.sleep=true algo.routing=r3 seed=2
    step "vLLM: one rank, and an engine on the GPU behind it"
    ranks 1 engine.placement=separate algo.routing=r3 seed=3
    step "vLLM in processes of its own on the trainer's GPUs: two ranks that share one engine, and with an engine each"
    ranks 2 engine.placement=shared engine.tensor_parallel=2 engine.sleep=true algo.routing=r3 seed=4
    ranks 2 engine.placement=shared engine.sleep=true algo.routing=r3 seed=5
  else
    step "one GPU: engines over several ranks, and separate ones, are left out"
  fi
else
  step "vLLM is not installed here: its half is left out"
fi

step "speed: seconds by phase in $OUT"
$PYTHON - "$OUT" <<'PY'
import json
import pathlib
import sys

for path in sorted(pathlib.Path(sys.argv[1]).glob("runs/*/metrics.jsonl")):
    rows = [json.loads(line) for line in path.read_text().splitlines()][2:]
    tokens = sum(row.get("tokens/response", 0) for row in rows)
    spent = sum(row.get("time/rollout", 0) for row in rows)
    print(path.parent.name, f"{tokens / spent:,.0f} sampled tokens per second of rollout" if spent else "too short")
PY
