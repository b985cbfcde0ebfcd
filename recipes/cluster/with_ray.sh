#!/usr/bin/env bash
# Run a command on a Ray cluster that lives as long as the command. Start it on every node, with the same arguments:
#
#   NNODES=2 NODE_RANK=0 HEAD=10.0.0.1 bash recipes/cluster/with_ray.sh bash recipes/qwen3/run_qwen3-8b_grail_megatron.sh
#   NNODES=2 NODE_RANK=1 HEAD=10.0.0.1 bash recipes/cluster/with_ray.sh
#
# Rank 0 starts the head, waits for the others, asks the doctor, runs the command, and ends with its exit code; the
# others serve until the head goes.
#
#   HEAD       address of rank 0             PORT       of Ray's head (6379)
#   NODE_IP    address of this node, if Ray should not find it out
#   WAIT       seconds to wait for nodes (600)
#   RAY_ARGS   more options of `ray start`, such as "--num-gpus=8"
#
# Ray's token authentication is on where a token is at hand (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token, which
# `ray get-auth-token --generate` writes): then every node needs the same one. RAY_AUTH_MODE=disabled turns it off.
set -euo pipefail
: "${NNODES:?how many nodes}" "${NODE_RANK:?rank of this node}" "${HEAD:?address of rank 0}"
PORT=${PORT:-6379} WAIT=${WAIT:-600}
# word splitting is wanted
# shellcheck disable=SC2206
ARGS=(--block --disable-usage-stats ${NODE_IP:+--node-ip-address=$NODE_IP} ${RAY_ARGS:-})

# what `ray start --head` does by itself, for the processes that join and connect
if [ -z "${RAY_AUTH_MODE:-}" ] && { [ -n "${RAY_AUTH_TOKEN:-}" ] || [ -f "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}" ]; }; then
  export RAY_AUTH_MODE=token
fi

living() { # number of living nodes
  python3 - "$HEAD:$PORT" <<'PYTHON'
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))
PYTHON
}

head_answers() { timeout 5 bash -c "exec 3<>/dev/tcp/$HEAD/$PORT" 2>/dev/null; }

# where Ray writes the address of the last cluster that was started or joined here
LAST=${RAY_TMPDIR:-${TMPDIR:-/tmp}}/ray/ray_current_cluster
RAY='' OURS=''
stop() {
  [ -z "$RAY" ] || kill "$RAY" 2>/dev/null || true
  [ -z "$RAY" ] || wait "$RAY" 2>/dev/null || true
  # left behind, it would send the next ray.init() of this machine to a cluster that is gone
  if [ -n "$OURS" ] && [ "$(cat "$LAST" 2>/dev/null)" = "$OURS" ]; then rm -f "$LAST"; fi
}
trap stop EXIT

if [ "$NODE_RANK" != 0 ]; then
  end=$((SECONDS + WAIT))
  until head_answers; do
    [ $SECONDS -lt $end ] || { echo "with_ray: no head at $HEAD:$PORT after $WAIT s" >&2; exit 1; }
    sleep 1
  done
  ray start --address="$HEAD:$PORT" "${ARGS[@]}" &
  RAY=$!
  missed=0
  while [ $missed -lt 5 ]; do
    kill -0 $RAY 2>/dev/null || { echo "with_ray: Ray on rank $NODE_RANK has ended" >&2; exit 1; }
    sleep 2
    OURS=$(cat "$LAST" 2>/dev/null || true)
    if head_answers; then missed=0; else missed=$((missed + 1)); fi
  done
  echo "with_ray: the head has gone, rank $NODE_RANK ends" >&2
  exit 0
fi

[ $# -gt 0 ] || { echo "with_ray: rank 0 needs a command" >&2; exit 2; }
ray start --head --port="$PORT" "${ARGS[@]}" &
RAY=$!

end=$((SECONDS + WAIT))
until n=$(living 2>/dev/null) && [ "$n" -ge "$NNODES" ]; do
  kill -0 $RAY 2>/dev/null || { echo "with_ray: the head did not start" >&2; exit 1; }
  [ $SECONDS -lt $end ] || { echo "with_ray: ${n:-0} of $NNODES nodes at $HEAD:$PORT after $WAIT s" >&2; exit 1; }
  sleep 2
done

OURS=$(cat "$LAST" 2>/dev/null || true)

export RAY_ADDRESS="$HEAD:$PORT"
verl-grail doctor --ray "$RAY_ADDRESS" --seconds "$WAIT"
"$@"
