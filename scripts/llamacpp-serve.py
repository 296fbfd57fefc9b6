#!/usr/bin/env python3
"""Serves a GGUF model on this machine with llama.cpp's own server (package `xllamacpp`), until it is ended.

    llamacpp-serve.py MODEL.gguf PORT SLOTS CONTEXT_PER_SLOT THREADS
"""

import signal
import sys

import xllamacpp


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    model, (port, slots, context, threads) = sys.argv[1], map(int, sys.argv[2:])
    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.hostnames = ["127.0.0.1"]
    settings.port = port
    settings.n_parallel = slots
    settings.n_ctx = slots * context
    settings.cpuparams.n_threads = threads
    settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    print(f"serving {model} at {server.listening_address}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


if __name__ == "__main__":
    main()
