"""A receiver of pushed results: python callback_receiver.py PORT, with BUNCH_CALLBACK_SECRET in the environment.

It checks the signature before it reads the body, refuses what is old, and handles each result once.
"""

import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_AGE_S = 300
SECRET = os.environ.get("BUNCH_CALLBACK_SECRET", "")
handled: set[str] = set()  # in a database, in a real receiver


def is_genuine(secret: str, header: str, body: bytes, now_s: float) -> bool:
    """True if `Bunch-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">` is right, and not old."""
    fields = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    sent, mac = fields.get("t", ""), fields.get("v1", "")
    expected = hmac.new(secret.encode(), f"{sent}.".encode() + body, hashlib.sha256).hexdigest()
    # compare_digest takes the same time however much of it is right.
    return hmac.compare_digest(expected.encode(), mac.encode()) and abs(now_s - int(sent)) <= MAX_AGE_S


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not is_genuine(SECRET, self.headers.get("Bunch-Signature", ""), body, time.time()):
            self.send_response(401)
        else:
            result = json.loads(body)
            if result["task_id"] not in handled:
                print(result["task_id"], result["status"], result.get("output", result.get("message")), flush=True)
                handled.add(result["task_id"])
            # Anything but 2xx is sent again: answer once the result is safe, and not before.
            self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print results only."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
