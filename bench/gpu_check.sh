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

if $PYTHON -c 'import vllm' 2>/dev/null; then
  step "vLLM: weights, routes and log-probabilities are the trainer's"
  for numerics in bf16 fp8; do
    $PYTHON -m minirl.cli doctor run.device=cuda engine=vllm "engine.numerics=$numerics" --plot "$OUT/vllm_$numerics.png" ||
      echo "engine.numerics=$numerics: see above"
  done
  step "vLLM: a run with R3, and one that sleeps while the trainer updates"
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm algo.routing=r3 num_mini_batches=4
  $PYTHON -m minirl.cli run "${small[@]}" engine=vllm engine.sleep=true seed=1
  gpus=$($PYTHON -c 'import torch; print(torch.cuda.device_count())')
  ranks() { $PYTHON -m torch.distributed.run --standalone --nproc_per_node="$1" -m minirl.run "${small[@]}" engine=vllm "${@:2}"; }
  if [ "$gpus" -ge 2 ]; then
    step "vLLM: two ranks that share one engine, asleep during updates"
    ranks 2 engine.tensor_parallel=2 engine.sleep=true algo.routing=r3 seed=2
    step "vLLM: one rank, and an engine on the GPU behind it"
    ranks 1 engine.placement=separate algo.routing=r3 seed=3
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
