"""A small fake of vLLM's HTTP server on a Unix socket, as a program's text; its first argument says how it behaves.

`adapter` makes the folder of an adapter for it to load.
"""

from __future__ import annotations

from pathlib import Path

FAKE = """
import json, os, signal, socketserver, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler

MODE, SOCKET = sys.argv[1], sys.argv[sys.argv.index("--uds") + 1]
ADAPTERS, LOCK, AWAKE, SLEPT = {}, threading.Lock(), threading.Event(), []
AWAKE.set()
print("fake engine: last words", flush=True)
if MODE == "no_start":
    sys.exit(3)
if MODE == "never_ready":
    time.sleep(600)
# A helper that outlives us, as vLLM's EngineCore does.
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(MODE_FILE := os.environ["FAKE_PIDS"], "w") as f:
    f.write(f"{os.getpid()} {helper.pid}")

def logprob(token, model, temperature):
    lost = 1.0 if MODE == "forgets" and SLEPT else 0.0
    return -(token % 13 + lost + 0.1 * ADAPTERS.get(model, 0)) / temperature

def next_answer(model, prompt):
    # FAKE_SAYS holds lists of ids, said in turn, the last for ever; what was asked is written beside it.
    with LOCK, open(os.environ["FAKE_SAYS"]) as answers, open(os.environ["FAKE_SAYS"] + ".asked", "a+") as asked:
        asked.seek(0)
        number = len(asked.readlines())
        asked.write(json.dumps([model, prompt]) + "\\n")
        answers = json.load(answers)
        return answers[min(number, len(answers) - 1)]

def generate(body):
    p, model = body["sampling_params"], body["model"]
    prompt, n = body["token_ids"], min(p["max_tokens"], 3)
    temperature = 1.0 if MODE == "raw_logprobs" else p.get("temperature", 1.0)
    ids = [(prompt[-1] + 1 + i) % 64 for i in range(n)]
    if MODE == "says" and not {"seed", "prompt_logprobs"} & set(p):      # not one of the engine's own probes
        ids = next_answer(model, prompt)[:p["max_tokens"]]
    def entry(t):
        return {"token_id": t, "logprob": logprob(t, model, temperature)}
    content = [{**entry(t), "top_logprobs": [entry(t), entry((t + 1) % 64)]} for t in ids]
    reason = "stop" if ids[-1] in p.get("stop_token_ids", ()) else "length"
    choice = {"token_ids": ids, "finish_reason": reason, "logprobs": {"content": content}}
    answer = {"model": model, "prompt_token_ids": prompt, "choices": [choice]}
    if "prompt_logprobs" in p:
        answer["prompt_logprobs"] = [None] + [{str(t): {"logprob": logprob(t, model, 1.0)}} for t in prompt[1:]]
    if max(prompt) == 63 and len(prompt) == 1:      # the test's call, not the probe's
        if MODE == "no_ids": del choice["token_ids"]
        if MODE == "no_logprobs": choice["logprobs"] = None
        if MODE == "short_logprobs": content.pop()
        if MODE == "nan": content[0]["logprob"] = -9999.0
        if MODE == "other_prompt": answer["prompt_token_ids"] = [1]
        if MODE == "other_model": answer["model"] = "someone"
        if MODE == "aborted": choice["finish_reason"] = "abort"
        if MODE == "hung": time.sleep(600)
        if MODE == "eats": print("fake engine: eating", flush=True); hog = b"x" * (1 << 30)
        if MODE == "drops": os.kill(os.getpid(), signal.SIGKILL)
        if MODE == "refuses": return 400, {"error": "no"}
    return 200, answer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self): return "unix"
    def log_message(self, *_): pass
    def do_GET(self): self.reply(200, {})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.startswith("/sleep") and "level=1" in self.path and MODE != "insomniac":
            AWAKE.clear()
            self.reply(200, {"status": "sleeping"})
        elif self.path == "/wake_up":
            SLEPT.append(1)
            AWAKE.set()
            self.reply(200, {"status": "awake"})
        elif self.path.startswith("/sleep"):
            self.reply(404, {"detail": "Not Found"})
        elif self.path == "/v1/load_lora_adapter":
            seed = sum(open(body["lora_path"] + "/adapter_model.safetensors", "rb").read())
            ADAPTERS[body["lora_name"]] = 1 if MODE == "stale" else seed
            self.reply(200, {})
        elif self.path == "/v1/unload_lora_adapter":
            del ADAPTERS[body["lora_name"]]
            self.reply(200, {})
        else:
            AWAKE.wait()  # as in its mode "wait": calls stay in the queue
            self.reply(*generate(body))
    def reply(self, status, answer):
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(SOCKET, Handler).serve_forever()
"""


def adapter(folder: Path, content: bytes) -> Path:
    """The new folder of an adapter whose weights are `content`."""
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder
