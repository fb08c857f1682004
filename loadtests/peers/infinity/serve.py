"""Starts infinity: becomes `infinity_emb v2`, for embeddings alone.

It has engines of its own, but not OpenVINO, so it runs the fastest of these on a CPU: torch in
bfloat16, the precision of the other servers. It sorts waiting texts by length and forms batches
itself; `--batch-size` bounds a batch. The vector cache and telemetry are off.
Source: infinity documentation, "CLI v2".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadtests.peers import options as peer_options
from loadtests.peers.minilm_files import TOKENIZER


def main() -> None:
    asked = peer_options.parse(__doc__)
    folder = Path(os.environ[TOKENIZER]).parent
    command = [str(Path(sys.executable).with_name("infinity_emb")), "v2"]
    command += ["--model-id", str(folder), "--served-model-name", peer_options.MINILM]
    command += ["--engine", "torch", "--device", "cpu", "--dtype", "bfloat16"]
    command += ["--batch-size", str(asked.batch), "--no-bettertransformer", "--no-compile"]
    command += ["--host", "127.0.0.1", "--port", str(asked.port), "--log-level", "warning"]
    quiet = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}
    # By exec, so that the caller's child process id is the server's.
    os.execve(command[0], command, {**os.environ, **quiet})


if __name__ == "__main__":
    main()
