#!/usr/bin/env python3
"""Black-box cases for an etcd-v3-compatible server (see blackbox.md for the prose of each case).

  run_blackbox.py --server-cmd 'etcd'                      start throw-away servers (flags of etcd are appended)
  run_blackbox.py --endpoint http://127.0.0.1:2379         only the cases that need nothing but a THROW-AWAY endpoint
                                                           (it is written to, compacted and filled with leases)
  both may be given; --only 3,17-20 or --only covered.txt (numbers in a file)  --list  --assume-version 3.7.0  --verbose
  --without watch,lease leaves the steps of these services out of the cases that can do without them (23, 55)

Uses the Python standard library, etcdctl and curl (openssl only for the TLS cases, which are
skipped without it).  Every request, start and wait is bounded.  Only processes this script started
are ended, by their own process group.

Verdicts: PASS, FAIL, SKIP.  SKIP carries the reason: no server command, feature newer than the server's
version, or "known defect of this version" (the case failed, but upstream fixed the behaviour in a later
release than the server says it is; a server that says it is at least that release must pass).
"""
import argparse, atexit, base64, http.client, json, os, queue, random, re, shlex, shutil, signal, socket
import struct, subprocess, sys, tempfile, threading, time, urllib.parse

CASES = []
ARGS = None
LIVE = []          # servers started and not yet stopped
TMP = None


class Fail(Exception):
    pass


class Skip(Exception):
    pass


def check(cond, msg):
    if not cond:
        raise Fail(msg)


def eq(got, want, what):
    if got != want:
        raise Fail(f"{what}: got {short(got)}, want {short(want)}")


def without(service):
    """True when --without names this service: the case leaves its steps out."""
    return service in (ARGS.without or "").split(",")


def short(x, n=220):
    s = x if isinstance(x, str) else repr(x)
    return s if len(s) <= n else s[:n] + "..."


def b64(x):
    return base64.b64encode(x if isinstance(x, bytes) else x.encode()).decode()


def unb64(s):
    return base64.b64decode(s)


def case(num, title, mark, own=False, since=None, fixed=None):
    """own: needs a server started by this script.  since: feature exists from this version.
    fixed: comma list of releases (one per minor) in which upstream corrected the behaviour."""
    def deco(fn):
        CASES.append(dict(num=num, title=title, mark=mark, own=own, since=since, fixed=fixed, fn=fn))
        return fn
    return deco


def ver(s):
    m = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", s or "")
    return (int(m[1]), int(m[2]), int(m[3] or 0)) if m else (0, 0, 0)


def is_fixed(v, fixed):
    """v: server version; fixed: '3.4.24,3.5.7,3.6.0'."""
    fs = sorted(ver(x) for x in fixed.split(","))
    for f in fs:
        if f[:2] == v[:2]:
            return v >= f
    return v > fs[-1] or (v[:2] > fs[0][:2] and v[:2] > fs[-1][:2])


# --------------------------------------------------------------------------- endpoint access
class Endpoint:
    def __init__(self, url, cacert=None, cert=None, key=None):
        self.url, self.cacert, self.cert, self.key = url, cacert, cert, key
        u = urllib.parse.urlparse(url)
        self.scheme, self.host, self.port = u.scheme, u.hostname, u.port
        self.version = None
        self._nonce = 0

    def uniq(self, name):
        self._nonce += 1
        return f"bb{os.getpid()}/{random.randrange(1 << 30):x}/{self._nonce}/{name}"

    def conn(self, timeout=10):
        if self.scheme == "https":
            import ssl
            ctx = ssl.create_default_context(cafile=self.cacert)
            if self.cert:
                ctx.load_cert_chain(self.cert, self.key)
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=ctx)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def http(self, method, path, body=None, headers=None, timeout=10):
        c = self.conn(timeout)
        try:
            c.request(method, path, body=body, headers=headers or {})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def gw(self, path, body, token=None, timeout=10, raw=False):
        """POST to the JSON gateway; returns (http status, parsed json or text)."""
        h = {"Content-Type": "application/json"}
        if token:
            h["Authorization"] = token
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        st, out = self.http("POST", "/v3" + path, data, h, timeout)
        if raw:
            return st, out
        try:
            return st, json.loads(out)
        except ValueError:
            return st, out.decode("utf-8", "replace")

    def ok(self, path, body, token=None, timeout=10):
        st, js = self.gw(path, body, token, timeout)
        check(st == 200 and isinstance(js, dict), f"POST {path} {short(body)}: HTTP {st} {short(js)}")
        return js

    def err(self, path, body, want_text, want_code=None, token=None, timeout=10, status=None):
        st, js = self.gw(path, body, token, timeout)
        check(st != 200, f"POST {path} {short(body)} was accepted: {short(js)}")
        msg = js.get("message") or js.get("error") if isinstance(js, dict) else js
        check(want_text.lower() in str(msg).lower(), f"POST {path}: message {msg!r} lacks {want_text!r}")
        if want_code is not None:
            codes = want_code if isinstance(want_code, tuple) else (want_code,)
            check(isinstance(js, dict) and js.get("code") in codes, f"POST {path}: code in {short(js)} is not {want_code}")
        if status is not None:
            sts = status if isinstance(status, tuple) else (status,)
            check(st in sts, f"POST {path}: HTTP {st}, want {sts}")
        return js

    def put(self, key, value, token=None, **kw):
        js = self.ok("/kv/put", dict(key=b64(key), value=b64(value), **kw), token)
        return int(js["header"]["revision"])

    def rng(self, key, end=None, token=None, **kw):
        body = dict(key=b64(key), **kw)
        if end is not None:
            body["range_end"] = b64(end)
        return self.ok("/kv/range", body, token)

    def keys(self, key, end=None, **kw):
        return [unb64(k["key"]) for k in self.rng(key, end, **kw).get("kvs", [])]

    def rev(self):
        return int(self.rng("\x00none")["header"]["revision"])

    def watch(self, create, token=None):
        return Watch(self, create, token)

    def ctl(self, *args, timeout=15, user=None, stdin=None, env=None, extra=()):
        e = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        e["ETCDCTL_API"] = "3"
        e.update(env or {})
        cmd = [ARGS.etcdctl, "--endpoints", self.url, "--dial-timeout=3s", "--command-timeout=8s"]
        if self.cacert:
            cmd += ["--cacert", self.cacert]
        if self.cert:
            cmd += ["--cert", self.cert, "--key", self.key]
        if user:
            cmd += ["--user", user]
        cmd += list(extra) + list(args)
        try:
            p = subprocess.run(cmd, env=e, input=stdin if stdin is not None else b"", capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Fail(f"etcdctl {short(args)} did not end within {timeout}s")
        return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")

    def ctl_ok(self, *args, **kw):
        rc, out, err = self.ctl(*args, **kw)
        check(rc == 0, f"etcdctl {short(args)}: exit {rc}: {short(err)} {short(out)}")
        return out

    def ctl_err(self, text, *args, **kw):
        rc, out, err = self.ctl(*args, **kw)
        check(rc != 0, f"etcdctl {short(args)} succeeded: {short(out)}")
        both = err + out.decode("utf-8", "replace")
        check(text.lower() in both.lower(), f"etcdctl {short(args)}: {short(both)} lacks {text!r}")


class Watch:
    """A watch over the JSON gateway: one POST whose response is a stream of JSON lines."""
    def __init__(self, ep, create, token=None):
        self.q, self.msgs = queue.Queue(), []
        self.c = ep.conn(timeout=30)
        h = {"Content-Type": "application/json"}
        if token:
            h["Authorization"] = token
        self.c.request("POST", "/v3/watch", json.dumps({"create_request": create}), h)
        self.sock = self.c.sock
        self.t = threading.Thread(target=self._read, daemon=True)
        self.t.start()

    def _read(self):
        try:
            r = self.c.getresponse()
            while True:
                line = r.readline()
                if not line:
                    break
                if line.strip():
                    self.q.put(json.loads(line))
        except Exception as x:       # closed or timed out
            self.q.put({"_end": repr(x)})
            return
        self.q.put({"_end": "eof"})

    def next(self, timeout=8, what="a watch response"):
        try:
            m = self.q.get(timeout=timeout)
        except queue.Empty:
            raise Fail(f"no {what} within {timeout}s")
        if "result" in m:
            self.msgs.append(m["result"])
            return m["result"]
        return m

    def created(self):
        m = self.next(what="'created' response")
        check(m.get("created") is True, f"first watch response is not created: {short(m)}")
        return m

    def events(self, n, timeout=8):
        out, dl = [], time.time() + timeout
        while len(out) < n:
            m = self.next(max(0.05, dl - time.time()), f"event {len(out)+1} of {n}")
            if "_end" in m:
                raise Fail(f"watch stream ended after {len(out)} of {n} events: {m}")
            if m.get("canceled"):
                raise Fail(f"watch cancelled after {len(out)} of {n} events: {short(m)}")
            out += m.get("events", [])
        return out

    def quiet(self, secs):
        end = time.time() + secs
        got = []
        while time.time() < end:
            try:
                m = self.q.get(timeout=max(0.01, end - time.time()))
            except queue.Empty:
                break
            if "_end" in m:
                raise Fail(f"watch stream ended: {m}")
            got.append(m.get("result", m))
        return got

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except Exception:
            pass
        try:
            self.sock.close()
        except Exception:
            pass


class WS:
    """Minimal websocket client for /v3/watch, so that one gateway stream can carry several requests."""
    def __init__(self, ep, path="/v3/watch"):
        self.s = socket.create_connection((ep.host, ep.port), timeout=10)
        key = b64(os.urandom(16))
        self.s.sendall((f"GET {path} HTTP/1.1\r\nHost: {ep.host}:{ep.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buf = b""
        while b"\r\n\r\n" not in self.buf:
            d = self.s.recv(4096)
            if not d:
                raise Fail("websocket upgrade refused")
            self.buf += d
        head, self.buf = self.buf.split(b"\r\n\r\n", 1)
        check(b" 101 " in head.split(b"\r\n")[0], f"websocket upgrade answered {head[:80]!r}")

    def send(self, obj):
        d = json.dumps(obj).encode()
        mask = os.urandom(4)
        hdr = b"\x81" + (bytes([0x80 | len(d)]) if len(d) < 126 else b"\xfe" + struct.pack(">H", len(d)))
        self.s.sendall(hdr + mask + bytes(c ^ mask[i % 4] for i, c in enumerate(d)))

    def _need(self, n):
        while len(self.buf) < n:
            d = self.s.recv(65536)
            if not d:
                raise Fail("websocket closed by the server")
            self.buf += d

    def recv(self, timeout=8):
        self.s.settimeout(timeout)
        try:
            while True:
                self._need(2)
                op, n, off = self.buf[0] & 15, self.buf[1] & 127, 2
                if n == 126:
                    self._need(4)
                    n, off = struct.unpack(">H", self.buf[2:4])[0], 4
                elif n == 127:
                    self._need(10)
                    n, off = struct.unpack(">Q", self.buf[2:10])[0], 10
                self._need(off + n)
                data, self.buf = self.buf[off:off + n], self.buf[off + n:]
                if op in (1, 2):
                    m = json.loads(data)
                    return m.get("result", m)
                if op == 8:
                    raise Fail("websocket closed by the server")
        except socket.timeout:
            return None

    def close(self):
        self.s.close()


# --------------------------------------------------------------------------- servers
USED_PORTS = set()


def free_port(fam=socket.AF_INET):
    """A port below the usual ephemeral range, so that no outgoing connection takes it before the server binds."""
    for _ in range(200):
        p = random.randrange(12000, 32000)
        if p in USED_PORTS:
            continue
        with socket.socket(fam) as s:
            try:
                s.bind(("127.0.0.1" if fam == socket.AF_INET else "::1", p))
            except OSError as x:
                if x.errno not in (98, 48, 13):      # taken or not allowed: try another; anything else is told
                    raise
                continue
        USED_PORTS.add(p)
        return p
    raise Fail("no free port found")


class Server:
    """One server process with etcd's flags, on random loopback ports, in a directory of its own."""
    def __init__(self, flags=(), env=None, name="s1", data=None, host="127.0.0.1", tls=None, client_urls=None,
                 peer_url=None, cluster=None, state="new", wait=True, defaults=True, start=True, ctl_tls=None):
        if not ARGS.server_cmd:
            raise Skip("needs --server-cmd")
        self.dir = data or tempfile.mkdtemp(prefix="srv-", dir=TMP)
        fam = socket.AF_INET6 if ":" in host else socket.AF_INET
        h = f"[{host}]" if ":" in host else host
        self.scheme = "https" if tls else "http"
        self.cport, self.pport = free_port(fam), free_port(fam)
        self.url = client_urls or f"{self.scheme}://{h}:{self.cport}"
        self.peer = peer_url or f"http://{h}:{self.pport}"
        self.name, self.env, self.flags = name, env or {}, list(flags)
        self.args = []
        if defaults:
            self.args = ["--name", name, "--data-dir", self.dir, "--listen-client-urls", self.url,
                         "--advertise-client-urls", self.url if self.url.startswith("http") else "http://127.0.0.1:1",
                         "--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer,
                         "--initial-cluster", cluster or f"{name}={self.peer}", "--initial-cluster-state", state]
        if tls:
            self.args += tls
        self.args += self.flags
        ct = ctl_tls or {}
        self.ep = Endpoint(self.url, **ct) if self.url.startswith("http") else None
        self.p, self.log = None, os.path.join(TMP, f"log-{len(os.listdir(TMP))}-{random.randrange(1<<20):x}.txt")
        if start:
            self.start(wait)

    def start(self, wait=True):
        e = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        e.update(self.env)
        lf = open(self.log, "ab")
        self.p = subprocess.Popen(shlex.split(ARGS.server_cmd) + self.args, env=e, stdin=subprocess.DEVNULL,
                                  stdout=lf, stderr=subprocess.STDOUT, start_new_session=True, cwd=TMP)
        lf.close()
        LIVE.append(self)
        if wait:
            self.wait_ready()
        return self

    def tail(self, n=360):
        try:
            return open(self.log, "rb").read()[-n:].decode("utf-8", "replace")
        except OSError:
            return ""

    def text(self):
        try:
            return open(self.log, "rb").read().decode("utf-8", "replace")
        except OSError:
            return ""

    def wait_ready(self, secs=20):
        end = time.time() + secs
        last = ""
        while time.time() < end:
            if self.p.poll() is not None:
                raise Fail(f"server ended at start with {self.p.returncode}: {short(self.tail(), 400)}")
            try:
                st, out = self.ep.http("GET", "/health", timeout=2)
                last = f"{st} {out[:80]!r}"
                if st == 200 and b"true" in out:
                    return
            except OSError as x:
                last = repr(x)
            time.sleep(0.1)
        raise Fail(f"server not healthy within {secs}s: {last}: {short(self.tail(), 300)}")

    def wait_exit(self, secs=15):
        try:
            return self.p.wait(secs)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, sig):
        if self.p and self.p.poll() is None:
            try:
                os.killpg(self.p.pid, sig)     # a group this script made (start_new_session)
            except ProcessLookupError:
                pass

    def kill9(self):
        self.signal(signal.SIGKILL)
        self.p.wait(10)
        if self in LIVE:
            LIVE.remove(self)

    def stop(self):
        if self.p and self.p.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.p.wait(6)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.p.wait(10)
        if self in LIVE:
            LIVE.remove(self)


def stop_all():
    for s in list(LIVE):
        try:
            s.stop()
        except Exception:
            pass


def cur_version():
    return ver(ARGS.assume_version) if ARGS.assume_version else RUN["version"]


RUN = {"version": (0, 0, 0)}


def wait_until(fn, secs, what, step=0.1):
    end = time.time() + secs
    while True:
        v = fn()
        if v:
            return v
        if time.time() > end:
            raise Fail(f"{what} not seen within {secs}s")
        time.sleep(step)


def txn_put(k, v, **kw):
    return {"request_put": dict(key=b64(k), value=b64(v), **kw)}


def txn_del(k, end=None):
    d = {"key": b64(k)}
    if end is not None:
        d["range_end"] = b64(end)
    return {"request_delete_range": d}


def txn_get(k, **kw):
    return {"request_range": dict(key=b64(k), **kw)}




def C(num, title, own=False, since=None, fixed=None):
    return case(num, title, "case", own, since, fixed)


NUL = b"\x00"


# ---- reads ---------------------------------------------------------------------------------------
@C(2, "whole keyspace: key and range_end both a single NUL; etcdctl --from-key ''")
def _(e):
    p = e.uniq("all")
    e.put(p, "x")
    e.put(b"\x01" + p.encode(), "y")
    at = e.rev()
    ks = e.keys(NUL, NUL, keys_only=True, revision=at)
    check(p.encode() in ks and (b"\x01" + p.encode()) in ks, "a key is missing from the whole-keyspace range")
    eq(ks, sorted(ks), "order of the whole keyspace")
    n = int(e.rng(NUL, NUL, count_only=True, revision=at)["count"])
    eq(n, len(ks), "count_only of the whole keyspace")
    check("kvs" not in e.rng(NUL, NUL, count_only=True), "count_only returned key-values")
    out = e.ctl_ok("get", "--from-key", "", "--keys-only").split()
    check(p.encode() in out, "etcdctl get --from-key '' misses a key")
    eq(e.keys(p, NUL)[0], p.encode(), "first key at or after the start key")


@C(4, "keys and values are arbitrary bytes: NUL, 0xff, not UTF-8, quotes and newlines survive")
def _(e):
    p = e.uniq("bin").encode()
    for i, s in enumerate((b"\x00", b"\x00\x00", b"\x01", b"\n\"\\", b"\x7f", b"\x80", b"\xc3\x28", b"\xff\xfe", bytes(range(256)))):
        e.put(p + b"/" + s, s + b"\x00tail")
        js = e.rng(p + b"/" + s)
        eq(unb64(js["kvs"][0]["value"]), s + b"\x00tail", f"value of binary key {s!r}")
    ks = e.keys(p + b"/", p + b"0")
    eq(ks, sorted(ks), "unsigned bytewise order")
    eq(len(ks), 9, "number of binary keys")


@C(6, "an empty key is refused with InvalidArgument in put, range, delete and inside a txn")
def _(e):
    for path, body in (("/kv/put", {"key": "", "value": b64("x")}), ("/kv/range", {"key": ""}), ("/kv/deleterange", {}),
                       ("/kv/txn", {"success": [{"request_put": {"value": b64("x")}}]}),
                       ("/kv/txn", {"compare": [{"key": "", "target": "VERSION", "version": "0"}]})):
        e.err(path, body, "key is not provided", 3, status=400)


@C(7, "etcdctl get of a missing key prints nothing and ends with 0")
def _(e):
    rc, out, err = e.ctl("get", e.uniq("nope"))
    eq((rc, out), (0, b""), "exit and stdout")


@C(8, "limit: count is the whole range, more says there is more, pages join without gaps at one revision")
def _(e):
    p = e.uniq("page")
    for i in range(7):
        e.put(f"{p}/{i}", str(i))
    js = e.rng(f"{p}/0", f"{p}/5", limit=2)
    eq((len(js["kvs"]), js["count"], js.get("more")), (2, "5", True), "kvs, count, more with limit 2 of 5")
    rev = js["header"]["revision"]
    e.put(f"{p}/00", "late")
    e.ok("/kv/deleterange", {"key": b64(f"{p}/3")})
    got, start = [unb64(k["key"]) for k in js["kvs"]], None
    for _ in range(5):
        js = e.rng(got[-1] + NUL, f"{p}/5", limit=2, revision=rev)
        got += [unb64(k["key"]) for k in js.get("kvs", [])]
        if not js.get("more"):
            break
    eq(got, [f"{p}/{i}".encode() for i in range(5)], "pages at the first page's revision")
    js = e.rng(f"{p}/0", f"{p}/00", limit=1)
    check(not js.get("more"), "more is set when the limit is exactly met")


@C(9, "sorting by CREATE with no order given is ascending")
def _(e):
    p = e.uniq("sort")
    for s in ("3", "1", "2"):
        e.put(p + s, "v")
    out = e.ctl_ok("get", p, "--prefix", "--sort-by=CREATE", "--keys-only").decode().split()
    eq(out, [p + s for s in ("3", "1", "2")], "etcdctl --sort-by=CREATE without --order")
    eq(e.keys(p, p + "~", sort_target="CREATE"), [(p + s).encode() for s in ("3", "1", "2")], "gateway sort_target CREATE without sort_order")
    eq(e.keys(p, p + "~"), [(p + s).encode() for s in ("1", "2", "3")], "no sort is key order")


@C(12, "version restarts at 1 after delete and re-create; create and mod revision are store revisions")
def _(e):
    k = e.uniq("ver")
    r1 = e.put(k, "a")
    r2 = e.put(k, "b")
    kv = e.rng(k)["kvs"][0]
    eq((kv["create_revision"], kv["mod_revision"], kv["version"]), (str(r1), str(r2), "2"), "after two puts")
    js = e.ok("/kv/deleterange", {"key": b64(k), "prev_kv": True})
    eq(js.get("deleted"), "1", "deleted")
    eq(unb64(js["prev_kvs"][0]["value"]), b"b", "prev_kvs of delete")
    r4 = e.put(k, "c")
    kv = e.rng(k)["kvs"][0]
    eq((kv["create_revision"], kv["mod_revision"], kv["version"]), (str(r4), str(r4), "1"), "after re-create")
    eq(unb64(e.rng(k, revision=r2)["kvs"][0]["value"]), b"b", "value at the old revision")
    check("kvs" not in e.rng(k, revision=r4 - 1), "key visible at the revision of its delete")
    rc, out, err = e.ctl("put", k, "d", "--prev-kv")
    check(rc == 0 and b"c" in out.split(b"\n"), f"etcdctl put --prev-kv does not show the old value: {short(out)}")


# ---- transactions ----------------------------------------------------------------------------------
@C(15, "create-if-absent: CREATE = 0 and VERSION = 0 hold only while the key is absent")
def _(e):
    for tgt, fld in (("CREATE", "create_revision"), ("VERSION", "version")):
        k = e.uniq("cas")
        t = {"compare": [{"key": b64(k), "target": tgt, "result": "EQUAL", fld: "0"}], "success": [txn_put(k, "t")], "failure": [txn_get(k)]}
        check(e.ok("/kv/txn", t).get("succeeded") is True, f"{tgt}=0 on an absent key")
        js = e.ok("/kv/txn", t)
        check(not js.get("succeeded"), f"{tgt}=0 on a present key succeeded")
        eq(unb64(js["responses"][0]["response_range"]["kvs"][0]["value"]), b"t", "failure branch")
    k = e.uniq("ctl")
    txt = f'create("{k}") = "0"\n\nput {k} v1\n\nget {k}\n\n'
    check(b"SUCCESS" in e.ctl_ok("txn", stdin=txt.encode()), "etcdctl txn, key absent")
    check(b"FAILURE" in e.ctl_ok("txn", stdin=txt.encode()), "etcdctl txn, key present")


@C(17, "a compare over a range needs every key in it; an empty range passes CREATE = 0")
def _(e):
    p = e.uniq("cr")
    c = lambda tgt, op, **kw: {"compare": [dict(key=b64(p), range_end=b64(p + "~"), target=tgt, result=op, **kw)]}
    check(e.ok("/kv/txn", c("CREATE", "EQUAL", create_revision="0")).get("succeeded") is True, "CREATE=0 over an empty range")
    check(not e.ok("/kv/txn", c("VALUE", "EQUAL", value=b64("v"))).get("succeeded"), "VALUE over an empty range")
    e.put(p + "a", "v")
    r = e.put(p + "b", "v")
    check(e.ok("/kv/txn", c("VALUE", "EQUAL", value=b64("v"))).get("succeeded") is True, "all values equal")
    check(e.ok("/kv/txn", c("MOD", "LESS", mod_revision=str(r + 1))).get("succeeded") is True, "all mod revisions less")
    check(not e.ok("/kv/txn", c("MOD", "LESS", mod_revision=str(r))).get("succeeded"), "one mod revision not less")
    e.put(p + "c", "w")
    check(not e.ok("/kv/txn", c("VALUE", "EQUAL", value=b64("v"))).get("succeeded"), "one value differs")


@C(18, "one txn may not write a key twice: put+put, put+delete, put+delete-range; two branches may; delete+delete may")
def _(e):
    k = e.uniq("dup")
    dup = "duplicate key given in txn request"
    for ops in ([txn_put(k, "1"), txn_put(k, "2")], [txn_put(k, "1"), txn_del(k)], [txn_del(k), txn_put(k, "1")],
                [txn_put(k, "1"), txn_del(k[:-1], k + "~")],
                [txn_put(k, "1"), {"request_txn": {"success": [txn_put(k, "2")]}}]):
        e.err("/kv/txn", {"success": ops}, dup, 3)
    check("kvs" not in e.rng(k), "a refused txn wrote")
    e.ok("/kv/txn", {"success": [txn_put(k, "1")], "failure": [txn_put(k, "2")]})
    e.ok("/kv/txn", {"success": [txn_del(k), txn_del(k)]})
    e.put(k, "v")
    e.ok("/kv/txn", {"success": [txn_del(k[:-1], k), txn_put(k, "2")]})       # end is exclusive: no overlap
    eq(unb64(e.rng(k)["kvs"][0]["value"]), b"2", "value after the non-overlapping txn")


@C(19, "delete-to-the-end then put in one txn: refused, or the put survives compaction at that revision and a restart", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.put("m1", "old")
    st, js = e.gw("/kv/txn", {"success": [txn_del("m", NUL), txn_put("m1", "new")]})
    if st != 200:
        check("duplicate key" in json.dumps(js), f"refused for another reason: {short(js)}")
        return "refused as duplicate"
    rev = int(js["header"]["revision"])
    eq(unb64(e.rng("m1")["kvs"][0]["value"]), b"new", "value after the txn")
    e.ok("/kv/compaction", {"revision": str(rev), "physical": True})
    eq(unb64(e.rng("m1")["kvs"][0]["value"]), b"new", "value after compaction at that revision")
    s.kill9()
    s.start()
    eq(unb64(e.rng("m1")["kvs"][0]["value"]), b"new", "value after restart")
    return "accepted and kept"


@C(20, "128 operations in a txn pass, 129 are refused")
def _(e):
    p = e.uniq("ops")
    e.ok("/kv/txn", {"success": [txn_put(f"{p}{i}", "v") for i in range(128)]})
    e.err("/kv/txn", {"success": [txn_put(f"{p}{i}", "v") for i in range(129)]}, "too many operations in txn request", 3)
    e.err("/kv/txn", {"compare": [{"key": b64(p), "target": "VERSION", "version": "0"}] * 129}, "too many operations in txn request", 3)


@C(22, "a txn that reads a compacted or future revision fails whole and writes nothing")
def _(e):
    k = e.uniq("cmp")
    e.put(k, "1")
    r = e.put(k, "2")
    e.ok("/kv/compaction", {"revision": str(r)})
    e.err("/kv/txn", {"success": [txn_put(k + "x", "bad"), txn_get(k, revision=str(r - 1))]}, "required revision has been compacted", 11)
    e.err("/kv/txn", {"success": [txn_put(k + "x", "bad"), txn_get(k, revision=str(r + 1000))]}, "required revision is a future revision", 11)
    check("kvs" not in e.rng(k + "x"), "the failed txn's put is visible")
    eq(e.rev(), r, "revision after failed txns")


# ---- compaction ---------------------------------------------------------------------------------------
@C(23, "compaction boundary: the compacted revision itself stays readable, older is an error, again and future are errors")
def _(e):
    k = e.uniq("comp")
    r1 = e.put(k, "1")
    r2 = e.put(k, "2")
    r3 = e.put(k, "3")
    e.ok("/kv/compaction", {"revision": str(r2)})
    eq(unb64(e.rng(k, revision=r2)["kvs"][0]["value"]), b"2", "read at the compacted revision")
    e.err("/kv/range", {"key": b64(k), "revision": str(r1)}, "required revision has been compacted", 11)
    e.err("/kv/compaction", {"revision": str(r2)}, "required revision has been compacted", 11)
    e.err("/kv/compaction", {"revision": str(r3 + 100)}, "required revision is a future revision", 11)
    e.ctl_err("required revision has been compacted", "get", k, f"--rev={r1}")
    e.ok("/kv/compaction", {"revision": str(r3)})
    eq(unb64(e.rng(k)["kvs"][0]["value"]), b"3", "current read after compaction to the current revision")
    if without("watch"):
        return "without its watch"
    w = e.watch({"key": b64(k), "start_revision": str(r3)})
    w.created()
    eq(unb64(w.events(1)[0]["kv"]["value"]), b"3", "watch from the compacted revision itself")
    w.close()


@C(24, "watch from a compacted revision is cancelled and names the compact revision")
def _(e):
    k = e.uniq("wc")
    r1 = e.put(k, "1")
    r2 = e.put(k, "2")
    r3 = e.put(k, "3")
    e.ok("/kv/compaction", {"revision": str(r3)})
    w = e.watch({"key": b64(k), "start_revision": str(r1)})
    w.created()
    m = w.next(what="cancel response")
    check(m.get("canceled") is True and m.get("compact_revision") == str(r3), f"not a compaction cancel: {short(m)}")
    w.close()
    rc, out, err = e.ctl("watch", k, f"--rev={r1}", timeout=10)
    check(rc != 0 and "required revision has been compacted" in err + out.decode(), f"etcdctl watch: {rc} {short(err)}")


@C(25, "a delete exactly at the compacted revision is still delivered to a watch from that revision", fixed="3.4.34,3.5.16,3.6.0")
def _(e):
    k = e.uniq("tomb")
    e.put(k, "1")
    js = e.ok("/kv/deleterange", {"key": b64(k)})
    r = js["header"]["revision"]
    e.put(k + "after", "x")
    e.ok("/kv/compaction", {"revision": r, "physical": True})
    w = e.watch({"key": b64(k), "range_end": b64(k + "~"), "start_revision": r})
    w.created()
    ev = w.events(1)[0]
    w.close()
    check(ev.get("type") == "DELETE" and ev["kv"]["mod_revision"] == r, f"first event is not the delete at {r}: {short(ev)}")


@C(26, "prev_kv is left out, not invented and not an error, when the previous version is compacted")
def _(e):
    k = e.uniq("pk")
    e.put(k, "1")
    r2 = e.put(k, "2")
    r3 = e.put(k, "3")
    w = e.watch({"key": b64(k), "start_revision": str(r2), "prev_kv": True})
    w.created()
    ev = w.events(2)
    w.close()
    eq([unb64(x["prev_kv"]["value"]) for x in ev], [b"1", b"2"], "prev_kv before compaction")
    e.ok("/kv/compaction", {"revision": str(r2), "physical": True})
    w = e.watch({"key": b64(k), "start_revision": str(r2), "prev_kv": True})
    w.created()
    ev = w.events(2)
    w.close()
    check("prev_kv" not in ev[0], f"prev_kv of a compacted version: {short(ev[0])}")
    eq(unb64(ev[1]["prev_kv"]["value"]), b"2", "prev_kv of a version still there")


# ---- watch ------------------------------------------------------------------------------------------
@C(28, "watch from a future revision stays silent until that revision")
def _(e):
    k = e.uniq("fut")
    r = e.put(k, "0")
    w = e.watch({"key": b64(k), "start_revision": str(r + 3)})
    w.created()
    e.put(k, "1")
    e.put(k, "2")
    check(w.quiet(0.6) == [], "an event before the start revision arrived")
    e.put(k, "3")
    ev = w.events(1)
    w.close()
    eq(unb64(ev[0]["kv"]["value"]), b"3", "first event")


@C(30, "fragment: a large catch-up response comes in pieces, all but the last marked; without it, in whole responses")
def _(e):
    p = e.uniq("frag")
    val = "v" * 900_000
    r = e.put(p + "0", val)
    for i in range(1, 5):
        e.put(f"{p}{i}", val)
    w = e.watch({"key": b64(p), "range_end": b64(p + "~"), "start_revision": str(r), "fragment": True})
    w.created()
    ev = w.events(5, 20)
    w.close()
    eq([int(x["kv"]["mod_revision"]) - r for x in ev], [0, 1, 2, 3, 4], "events over the fragments")
    ms = [m for m in w.msgs if m.get("events")]
    check(len(ms) >= 2, "4.5 MB of events came in one response although fragment was asked for")
    check(ms[0].get("fragment") is True and not ms[-1].get("fragment"), f"fragment marks: {[m.get('fragment') for m in ms]}")
    w = e.watch({"key": b64(p), "range_end": b64(p + "~"), "start_revision": str(r)})
    w.created()
    eq(len(w.events(5, 20)), 5, "events without fragment")
    check(not any(m.get("fragment") for m in w.msgs), "fragment mark without fragment asked")
    w.close()
    e.ok("/kv/deleterange", {"key": b64(p), "range_end": b64(p + "~")})


@C(33, "several watches on one stream: distinct ids, each its own events, cancel of one leaves the others")
def _(e):
    p = e.uniq("ws")
    ws = WS(e)
    try:
        ws.send({"create_request": {"key": b64(p + "a")}})
        a = ws.recv()
        ws.send({"create_request": {"key": b64(p + "b")}})
        b = ws.recv()
        check(a and b and a.get("created") and b.get("created"), f"create: {short(a)} {short(b)}")
        ia, ib = a.get("watch_id", "0"), b.get("watch_id", "0")
        check(ia != ib, f"two watches on one stream share id {ia}")
        e.put(p + "a", "1")
        m = ws.recv()
        check(m and m.get("watch_id", "0") == ia and unb64(m["events"][0]["kv"]["key"]) == (p + "a").encode(), f"event of a: {short(m)}")
        ws.send({"cancel_request": {"watch_id": ib}})
        m = ws.recv()
        check(m and m.get("canceled") is True and m.get("watch_id", "0") == ib, f"cancel of b: {short(m)}")
        e.put(p + "b", "2")
        e.put(p + "a", "3")
        m = ws.recv()
        check(m and m.get("watch_id", "0") == ia and unb64(m["events"][0]["kv"]["value"]) == b"3", f"after the cancel: {short(m)}")
        ws.send({"progress_request": {}})
        m = ws.recv()
        check(m and not m.get("events") and int(m["header"]["revision"]) >= 3, f"progress answer: {short(m)}")
    finally:
        ws.close()


# ---- leases ---------------------------------------------------------------------------------------------
@C(35, "lease ids: int64 as a decimal string in JSON, hexadecimal in etcdctl, the same lease in both")
def _(e):
    js = e.ok("/lease/grant", {"TTL": "100"})
    check(isinstance(js["ID"], str) and isinstance(js["TTL"], str), f"int64 fields are not strings: {short(js)}")
    hexid = "%x" % int(js["ID"])
    out = e.ctl_ok("lease", "timetolive", hexid).decode()
    check("granted with TTL(100s)" in out, f"etcdctl does not know the gateway's lease: {short(out)}")
    k = e.uniq("lid")
    e.ctl_ok("put", k, "v", f"--lease={hexid}")
    eq(e.rng(k)["kvs"][0]["lease"], js["ID"], "lease of a key put by etcdctl")
    ids = [x["ID"] for x in e.ok("/lease/leases", {})["leases"]]
    check(js["ID"] in ids, "lease is not listed")
    e.ok("/lease/revoke", {"ID": js["ID"]})


@C(37, "an unknown or ended lease: put and revoke are NotFound, keepalive answers TTL 0, timetolive answers TTL -1")
def _(e):
    lid = e.ok("/lease/grant", {"TTL": 60})["ID"]
    e.ok("/lease/revoke", {"ID": lid})
    e.err("/kv/put", {"key": b64(e.uniq("l")), "value": "", "lease": lid}, "requested lease not found", 5, status=404)
    e.err("/lease/revoke", {"ID": lid}, "requested lease not found", 5, status=404)
    st, out = e.gw("/lease/keepalive", {"ID": lid}, raw=True)
    js = json.loads(out.splitlines()[0])["result"]
    check(st == 200 and js["ID"] == lid and js.get("TTL") in (None, "0"), f"keepalive: {st} {short(js)}")
    eq(e.ok("/lease/timetolive", {"ID": lid}).get("TTL"), "-1", "timetolive")
    rc, out, err = e.ctl("lease", "timetolive", "%x" % int(lid))
    check(rc == 0 and b"already expired" in out, f"etcdctl lease timetolive: {rc} {short(out)}")


@C(38, "lease end: keys go in one revision, watchers see the deletes, renewed leases stay, detached keys stay")
def _(e):
    p = e.uniq("exp")
    a = e.ok("/lease/grant", {"TTL": 2})["ID"]
    b = e.ok("/lease/grant", {"TTL": 3})["ID"]
    for s in ("1", "2", "3"):
        r = e.put(p + s, "v", lease=a)
    e.put(p + "3", "free")                          # put without the lease detaches it
    r = e.put(p + "b", "v", lease=b)
    eq(sorted(unb64(x) for x in e.ok("/lease/timetolive", {"ID": a, "keys": True})["keys"]), [(p + "1").encode(), (p + "2").encode()], "keys on the lease")
    w = e.watch({"key": b64(p), "range_end": b64(p + "~"), "start_revision": str(r + 1)})
    w.created()
    t0 = time.time()
    ev, nxt = [], 0
    while time.time() - t0 < 9 and len(ev) < 2:
        e.gw("/lease/keepalive", {"ID": b}, raw=True)
        for m in w.quiet(0.7):
            ev += m.get("events", [])
    eq(sorted((x.get("type"), unb64(x["kv"]["key"])) for x in ev), [("DELETE", (p + "1").encode()), ("DELETE", (p + "2").encode())], "delete events")
    check(len({x["kv"]["mod_revision"] for x in ev}) == 1, "the lease's keys went in several revisions")
    check(time.time() - t0 >= 1.0, "lease ended well before its TTL")
    e.gw("/lease/keepalive", {"ID": b}, raw=True)
    eq([k[len(p):] for k in e.keys(p, p + "~")], [b"3", b"b"], "keys left")
    w.close()
    e.ok("/lease/revoke", {"ID": b})


# ---- gateway and HTTP ---------------------------------------------------------------------------------
@C(39, "gateway JSON: int64 and enum accepted as string or number, answers print int64 as strings and omit defaults")
def _(e):
    k = e.uniq("json")
    e.put(k, "v")
    for body in ({"sort_order": "DESCEND", "sort_target": "MOD", "limit": "1"}, {"sort_order": 2, "sort_target": 2, "limit": 1}):
        js = e.rng(k, **body)
        kv = js["kvs"][0]
        for f in ("create_revision", "mod_revision", "version"):
            check(isinstance(kv[f], str), f"{f} is not a string")
        for f in ("cluster_id", "member_id", "revision", "raft_term"):
            check(isinstance(js["header"][f], str), f"header {f} is not a string")
        check("lease" not in kv and "more" not in js, f"defaults are printed: {short(js)}")
    st, js = e.gw("/kv/range", {"key": b64(k), "sort_order": "UPWARD"})
    check(st in (200, 400), f"unknown enum name: {st}")      # 3.4, 3.5: refused; from 3.6 the gateway ignores unknown names
    st, js = e.gw("/kv/range", {"key": "!!!not base64"})
    eq(st, 400, "key that is not base64")
    ms = e.ok("/cluster/member/list", {})["members"]
    check(all(isinstance(m["ID"], str) for m in ms), "member IDs are not strings")


@C(40, "gateway JSON: a revision with a leading zero, a broken body and a wrong method are refused, an unknown field is not")
def _(e):
    k = e.uniq("bad")
    e.put(k, "v")
    for body in (f'{{"key":"{b64(k)}","revision":"010"}}', f'{{"key":"{b64(k)}","revision":010}}', '{"key":', f'{{"key":"{b64(k)}","limit":"1.5"}}'):
        st, js = e.gw("/kv/range", body)
        eq(st, 400, f"body {body}")
    st, js = e.gw("/kv/range", {"key": b64(k), "no_such_field": 1})
    eq(st, 200, "unknown field")
    st, _o = e.http("GET", "/v3/kv/range")
    check(st in (404, 405, 501), f"GET of a POST route: {st}")
    st, _o = e.http("POST", "/v3/kv/nosuch", "{}")
    eq(st, 404, "unknown route")


@C(41, "HTTP/1.1 connections are kept open over many gateway requests, also after a refused one")
def _(e):
    c = e.conn()
    k = e.uniq("ka")
    try:
        sock = None
        for i in range(40):
            body = json.dumps({"key": b64(k), "value": b64(str(i))}) if i != 20 else '{"key":""}'
            c.request("POST", "/v3/kv/put", body)
            r = c.getresponse()
            r.read()
            check(r.status == (200 if i != 20 else 400), f"request {i}: {r.status}")
            check((r.getheader("Connection") or "").lower() != "close", f"request {i}: server closes")
            check(c.sock is not None and (sock is None or c.sock is sock), f"request {i}: another connection")
            sock = c.sock
    finally:
        c.close()
    eq(unb64(e.rng(k)["kvs"][0]["value"]), b"39", "last value")
    js = json.loads(subprocess.run(["curl", "-sS", "-m", "10", "-L", e.url + "/v3/kv/range", "-X", "POST", "-d", json.dumps({"key": b64(k)})],
                                   capture_output=True, timeout=15).stdout)
    eq(js["count"], "1", "curl")


# ---- limits and alarms --------------------------------------------------------------------------------
@C(43, "request size: 1.5 MB passes, 1.6 MB is 'request is too large', 3 MB does not reach the server; the flag raises it", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.put("big", "v" * 1_500_000)
    eq(len(e.rng("big")["kvs"][0]["value"]), 2_000_000, "base64 length of the value read back")
    e.err("/kv/put", {"key": b64("big2"), "value": b64("v" * 1_600_000)}, "request is too large", 3)
    st, js = e.gw("/kv/put", {"key": b64("big3"), "value": b64("v" * 3_000_000)})
    check(st != 200 and "larger than max" in json.dumps(js), f"3 MB: {st} {short(js)}")
    check("kvs" not in e.rng("big2", "big9"), "a refused value is stored")
    s.stop()
    s = Server(["--max-request-bytes=4000000"])
    s.ep.put("big3", "v" * 3_000_000)
    eq(s.ep.rng("big3")["count"], "1", "3 MB with a raised limit")


# ---- auth -------------------------------------------------------------------------------------------------
def auth_server(flags=()):
    s = Server(list(flags))
    e = s.ep
    e.ok("/auth/user/add", {"name": "root", "password": "rp"})
    e.ok("/auth/role/add", {"name": "root"})
    e.ok("/auth/user/grant", {"user": "root", "role": "root"})
    return s, e


def add_user(e, name, perms, tok=None):
    e.ok("/auth/user/add", {"name": name, "password": "p"}, tok)
    e.ok("/auth/role/add", {"name": name + "r"}, tok)
    for typ, key, end in perms:
        p = {"permType": typ, "key": b64(key)}
        if end is not None:
            p["range_end"] = b64(end)
        e.ok("/auth/role/grant", {"name": name + "r", "perm": p}, tok)
    e.ok("/auth/user/grant", {"user": name, "role": name + "r"}, tok)


def login(e, name, pw="p"):
    return e.ok("/auth/authenticate", {"name": name, "password": pw})["token"]


@C(45, "auth: needs root first; permission ranges are bytewise and half-open, prefix and open-ended ones work, root needs none", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.err("/auth/enable", {}, "root user does not exist", 9)
    s.stop()
    s, e = auth_server()
    for k in ("etcd020", "etcd20", "pre/a", "zz"):
        e.put(k, "v")
    add_user(e, "num", [("READWRITE", "etcd0", "etcd100")])
    add_user(e, "pfx", [("READ", "pre/", "pre0")])
    add_user(e, "open", [("READ", "\x00", "\x00")])
    e.ok("/auth/enable", {})
    num, pfx, opn, root = login(e, "num"), login(e, "pfx"), login(e, "open"), login(e, "root", "rp")
    den = "permission denied"
    eq(e.rng("etcd020", token=num)["count"], "1", "etcd020 is in [etcd0, etcd100)")
    e.err("/kv/range", {"key": b64("etcd20")}, den, 7, num, status=403)
    e.err("/kv/range", {"key": b64("etcd100")}, den, 7, num)
    eq(e.rng("pre/", "pre0", token=pfx)["count"], "1", "exactly the granted prefix")
    e.err("/kv/range", {"key": b64("pre/"), "range_end": b64("pre1")}, den, 7, pfx)
    e.err("/kv/range", {"key": b64("pre/"), "range_end": b64(NUL)}, den, 7, pfx)
    e.err("/kv/put", {"key": b64("pre/a"), "value": ""}, den, 7, pfx)
    e.err("/kv/txn", {"success": [txn_get("pre/a"), txn_put("pre/b", "x")]}, den, 7, pfx)
    e.err("/kv/txn", {"compare": [{"key": b64("zz"), "target": "VERSION", "version": "0"}]}, den, 7, pfx)
    eq(e.rng(NUL, NUL, token=opn)["count"], "4", "open-ended permission from NUL reads everything")
    e.put("anything", "v", root)
    e.err("/kv/range", {"key": b64("zz")}, "user name is empty", 3)
    e.err("/auth/user/add", {"name": "x", "password": "y"}, den, 7, num)
    out = e.ctl_ok("get", "--prefix", "pre/", "--keys-only", user="pfx:p").split()
    eq(out, [b"pre/a"], "etcdctl --user")
    e.ctl_err("authentication failed", "get", "pre/a", user="pfx:wrong")


@C(46, "auth tokens: a bad one is Unauthenticated (401), a good one works, an idle one ends after --auth-token-ttl, re-login works", own=True)
def _(e0):
    s, e = auth_server(["--auth-token-ttl=2"])
    e.ok("/auth/enable", {})
    e.err("/kv/range", {"key": b64("a")}, "invalid auth token", 16, "nonsense.1", status=401)
    e.err("/auth/authenticate", {"name": "root", "password": "bad"}, "authentication failed", 3)
    t = login(e, "root", "rp")
    e.put("a", "v", t)
    time.sleep(4.5)
    e.err("/kv/range", {"key": b64("a")}, "invalid auth token", 16, t, status=401)
    e.err("/lease/grant", {"TTL": 60}, "invalid auth token", 16, t)
    e.rng("a", token=login(e, "root", "rp"))
    s.kill9()
    t = None
    s.start()
    t = login(e, "root", "rp")
    eq(e.rng("a", token=t)["count"], "1", "auth is still on, and works, after a restart")
    e.err("/kv/range", {"key": b64("a")}, "user name is empty", 3)


@C(48, "auth: prev_kv of a put, also inside a txn and nested, needs read permission", own=True, fixed="3.4.44,3.5.30,3.6.11")
def _(e0):
    s, e = auth_server()
    e.put("w/x", "secret")
    add_user(e, "wr", [("WRITE", "w/", "w0")])
    e.ok("/auth/enable", {})
    t = login(e, "wr")
    e.put("w/y", "v", t)
    den = "permission denied"
    e.err("/kv/put", {"key": b64("w/x"), "value": b64("n"), "prev_kv": True}, den, 7, t)
    e.err("/kv/deleterange", {"key": b64("w/x"), "prev_kv": True}, den, 7, t)
    e.err("/kv/txn", {"success": [txn_put("w/x", "n", prev_kv=True)]}, den, 7, t)
    e.err("/kv/txn", {"success": [{"request_txn": {"success": [txn_put("w/x", "n", prev_kv=True)]}}]}, den, 7, t)
    e.err("/kv/txn", {"success": [{"request_txn": {"success": [txn_get("w/x")]}}]}, den, 7, t)


# ---- flags, addresses, TLS ----------------------------------------------------------------------------
@C(49, "start flags: env variables count, env plus flag is an error, listen without advertise is an error, names are no bind address", own=True)
def _(e0):
    s = Server(env={"ETCD_MAX_TXN_OPS": "2"})
    s.ep.err("/kv/txn", {"success": [txn_put(f"a{i}", "v") for i in range(3)]}, "too many operations", 3)
    s.stop()
    s = Server(env={"ETCD_NAME": "other"}, wait=False)
    rc = s.wait_exit()
    check(rc not in (None, 0), f"env ETCD_NAME and --name together: exit {rc}")
    check("conflicting environment variable" in s.text(), f"message: {short(s.tail())}")
    s = Server(env={"ETCD_NO_SUCH_THING": "1"})
    s.stop()
    d = tempfile.mkdtemp(dir=TMP)
    p = free_port()
    s = Server(["--data-dir", d, "--listen-client-urls", f"http://127.0.0.1:{p}"], defaults=False, wait=False)
    rc = s.wait_exit()
    check(rc not in (None, 0) and "advertise-client-urls is required" in s.text(), f"listen without advertise: exit {rc} {short(s.tail())}")
    u = f"http://etcd.invalid:{p}"
    s = Server(["--data-dir", d, "--listen-client-urls", u, "--advertise-client-urls", u], defaults=False, wait=False)
    rc = s.wait_exit()
    check(rc not in (None, 0) and "expected IP in URL for binding" in s.text(), f"host name to bind: exit {rc} {short(s.tail())}")


@C(50, "IPv6: listens on [::1]; two spellings of one address in --initial-cluster and --initial-advertise-peer-urls agree", own=True, fixed="3.4.24,3.5.8,3.6.0")
def _(e0):
    try:
        free_port(socket.AF_INET6)
    except OSError:
        raise Skip("no IPv6 loopback here")
    s = Server(host="::1")
    s.ep.put("six", "v")
    eq(s.ep.ctl_ok("get", "six").split(), [b"six", b"v"], "etcdctl over [::1]")
    out = subprocess.run(["curl", "-sS", "-g", "-m", "8", s.url + "/version"], capture_output=True, timeout=12).stdout
    check(b"etcdserver" in out, f"curl over [::1]: {out!r}")
    s.stop()
    pp = free_port(socket.AF_INET6)
    s = Server(host="::1", peer_url=f"http://[::1]:{pp}", cluster=f"s1=http://[0:0:0:0:0:0:0:1]:{pp}")
    s.ep.put("six", "v")


@C(51, "unix socket: --listen-client-urls unix://<absolute path> serves the gateway", own=True, fixed="3.5.13,3.6.0")
def _(e0):
    sock = os.path.join(tempfile.mkdtemp(dir=TMP), "c.sock")
    s = Server(client_urls="unix://" + sock, wait=False)
    def up():
        if s.p.poll() is not None:
            raise Fail(f"server ended with {s.p.returncode}: {short(s.tail())}")
        r = subprocess.run(["curl", "-sS", "-m", "3", "--unix-socket", sock, "http://localhost/version"], capture_output=True, timeout=8)
        return r.returncode == 0 and b"etcdserver" in r.stdout
    wait_until(up, 15, "answer on the unix socket", 0.3)
    r = subprocess.run(["curl", "-sS", "-m", "8", "--unix-socket", sock, "http://localhost/v3/kv/put", "-d",
                        json.dumps({"key": b64("u"), "value": b64("v")})], capture_output=True, timeout=12)
    check(b"revision" in r.stdout, f"put over the unix socket: {r.stdout!r} {r.stderr!r}")


def make_certs(d):
    if not shutil.which("openssl"):
        raise Skip("no openssl to make certificates")
    def run(*a):
        p = subprocess.run(["openssl", *a], cwd=d, capture_output=True, timeout=30)
        check(p.returncode == 0, f"openssl {a[0]}: {short(p.stderr.decode('utf-8', 'replace'))}")
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test-ca")
    for name, subj, ext in (("server", "/CN=srv", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth"),
                            ("alice", "/CN=alice", "extendedKeyUsage=clientAuth"), ("nocn", "/O=nobody", "extendedKeyUsage=clientAuth")):
        open(os.path.join(d, name + ".ext"), "w").write(ext + "\n")
        run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key", "-out", name + ".csr", "-subj", subj)
        run("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", name + ".pem",
            "-extfile", name + ".ext")


@C(52, "TLS: no client certificate is refused, SAN decides the host, CN is the user in etcdctl, the gateway refuses a CN when auth is on", own=True)
def _(e0):
    d = tempfile.mkdtemp(dir=TMP)
    make_certs(d)
    f = lambda n: os.path.join(d, n)
    nocn = dict(cacert=f("ca.pem"), cert=f("nocn.pem"), key=f("nocn.key"))
    s = Server(tls=["--cert-file", f("server.pem"), "--key-file", f("server.key"), "--trusted-ca-file", f("ca.pem"), "--client-cert-auth=true"], ctl_tls=nocn)
    e = s.ep
    alice = Endpoint(s.url, f("ca.pem"), f("alice.pem"), f("alice.key"))
    r = subprocess.run(["curl", "-sS", "-m", "8", "--cacert", f("ca.pem"), s.url + "/version"], capture_output=True, timeout=12)
    check(r.returncode != 0, f"no client certificate: {short(r.stdout)}")
    r = subprocess.run(["curl", "-sS", "-m", "8", s.url.replace("https", "http") + "/version"], capture_output=True, timeout=12)
    check(b"etcdserver" not in r.stdout, "plain HTTP answered on the TLS port")
    byname = Endpoint(s.url.replace("127.0.0.1", "localhost"), f("ca.pem"), f("alice.pem"), f("alice.key"))
    rc, out, err = byname.ctl("get", "x")
    check(rc != 0, "a host name outside the certificate's SAN was accepted")
    for k in ("a/1", "b/1"):
        alice.ctl_ok("put", k, "v")
    e.ok("/auth/user/add", {"name": "root", "password": "rp"})
    e.ok("/auth/role/add", {"name": "root"})
    e.ok("/auth/user/grant", {"user": "root", "role": "root"})
    add_user(e, "alice", [("READ", "a/", "a0")])
    e.ok("/auth/enable", {})
    eq(alice.ctl_ok("get", "a/1").split(), [b"a/1", b"v"], "CN alice reads her range")
    alice.ctl_err("permission denied", "get", "b/1")
    eq(alice.ctl_ok("get", "b/1", user="root:rp").split(), [b"b/1", b"v"], "a password goes before the CN")
    st, js = alice.gw("/kv/range", {"key": b64("a/1")})
    check(st == 400 and "CommonName" in str(js), f"gateway with a CN: {st} {short(js)}")
    t = e.ok("/auth/authenticate", {"name": "alice", "password": "p"})["token"]
    eq(e.rng("a/1", token=t)["count"], "1", "gateway without a CN, with a token")


# ---- membership, durability, snapshot ------------------------------------------------------------------
@C(53, "member add: a taken peer URL, a path or a missing port is refused; a second learner is refused; nothing changes", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.err("/cluster/member/add", {"peerURLs": [s.peer]}, "Peer URLs already exists", 9)
    for bad in ("http://127.0.0.1", "http://127.0.0.1:1/path", "127.0.0.1:1", ""):
        e.err("/cluster/member/add", {"peerURLs": [bad]}, "", 3, status=400)
    e.ctl_err("must not contain a path", "member", "add", "x", "--peer-urls=http://127.0.0.1:1/path")
    e.ctl_err("host:port", "member", "add", "x", "--peer-urls=http://127.0.0.1")
    eq(len(e.ok("/cluster/member/list", {})["members"]), 1, "members after refused adds")
    js = e.ok("/cluster/member/add", {"peerURLs": ["http://127.0.0.1:1"], "isLearner": True})
    check(js["member"].get("isLearner") is True, f"learner: {short(js)}")
    e.err("/cluster/member/add", {"peerURLs": ["http://127.0.0.1:2"], "isLearner": True}, "too many learner members", 9)
    e.err("/cluster/member/promote", {"ID": js["member"]["ID"]}, "in sync with leader", 9)
    e.err("/cluster/member/promote", {"ID": "12345"}, "member not found", 5)
    e.put("still", "writes")                       # a learner does not count for the quorum
    e.ok("/cluster/member/remove", {"ID": js["member"]["ID"]})
    eq(len(e.ok("/cluster/member/list", {})["members"]), 1, "members after remove")


@C(54, "a learner serves serializable reads and status only, then votes and serves all after promote", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.put("k", "v")
    pp = free_port()
    purl = f"http://127.0.0.1:{pp}"
    mid = e.ok("/cluster/member/add", {"peerURLs": [purl], "isLearner": True})["member"]["ID"]
    l = Server(name="s2", peer_url=purl, cluster=f"s1={s.peer},s2={purl}", state="existing", wait=False)
    def up():
        if l.p.poll() is not None:
            raise Fail(f"learner ended with {l.p.returncode}: {short(l.tail())}")
        try:
            st, js = l.ep.gw("/kv/range", {"key": b64("k"), "serializable": True}, timeout=2)
            return st == 200 and js.get("count") == "1"
        except OSError:
            return False
    wait_until(up, 20, "serializable read on the learner", 0.3)
    no = "rpc not supported for learner"
    code, http = (9, 400) if cur_version() >= (3, 6) else (14, 503)
    l.ep.err("/kv/range", {"key": b64("k")}, no, code, status=http)
    l.ep.err("/kv/put", {"key": b64("k"), "value": b64("x")}, no, code)
    js = l.ep.ok("/maintenance/status", {})
    check(js.get("isLearner") is True, f"status of the learner: {short(js)}")
    wait_until(lambda: e.gw("/cluster/member/promote", {"ID": mid})[0] == 200, 20, "promotion", 0.3)
    def put2():
        st, js = l.ep.gw("/kv/put", {"key": b64("k"), "value": b64("2")}, timeout=6)
        return st == 200
    wait_until(put2, 15, "write through the promoted member", 0.3)
    eq(unb64(e.rng("k")["kvs"][0]["value"]), b"2", "the other member sees it")
    ms = e.ok("/cluster/member/list", {})["members"]
    check(len(ms) == 2 and not any(m.get("isLearner") for m in ms), f"members: {short(ms)}")
    l.stop()


@C(55, "kill -9 straight after the answers: nothing acknowledged is lost, revisions and hash are as before, leases are there", own=True)
def _(e0):
    s = Server()
    e = s.ep
    lid = None if without("lease") else e.ok("/lease/grant", {"TTL": 500})["ID"]
    for i in range(60):
        last = e.put(f"d{i % 20:02d}", str(i), **({"lease": lid} if lid and i % 7 == 0 else {}))
    e.ok("/kv/deleterange", {"key": b64("d00"), "range_end": b64("d05")})
    last = e.put("z", "last")
    before = e.rng(NUL, NUL)["kvs"]
    hashkv = lambda: [(x["HashKV"]["hash"], x["HashKV"]["header"]["revision"]) for x in json.loads(e.ctl_ok("endpoint", "hashkv", "-w", "json"))]
    h = hashkv()
    s.kill9()
    s.start()
    js = e.rng(NUL, NUL)
    eq(js["kvs"], before, "key-values after the kill")
    eq(int(js["header"]["revision"]), last, "revision after the kill")
    eq(hashkv(), h, "hash of the key space after the kill")
    eq(e.put("z", "next"), last + 1, "next revision")
    if not lid:
        return "without its lease"
    check(int(e.ok("/lease/timetolive", {"ID": lid}).get("TTL", "-1")) > 400, "lease after the kill")


@C(56, "put, delete, compact at the head, restart: reads work, the revision does not fall back", own=True)
def _(e0):
    s = Server()
    e = s.ep
    e.put("foo", "bar")
    r = int(e.ok("/kv/deleterange", {"key": b64("foo")})["header"]["revision"])
    e.ok("/kv/compaction", {"revision": str(r), "physical": True})
    check("kvs" not in e.rng("foo"), "foo after delete")
    s.kill9()
    s.start()
    js = e.rng("foo")
    check("kvs" not in js, "foo after restart")
    eq(int(js["header"]["revision"]), r, "revision after restart")
    e.err("/kv/range", {"key": b64("foo"), "revision": str(r - 1)}, "required revision has been compacted", 11)
    eq(e.put("foo", "again"), r + 1, "next revision")
    eq(e.rng("foo")["kvs"][0]["version"], "1", "version of the re-created key")


@C(58, "restore with --bump-revision and --mark-compacted: revisions never fall, old watchers are cancelled", own=True, since="3.6.0")
def _(e0):
    if not ARGS.restore_cmd:
        raise Skip("needs --restore-cmd of a tool that has --bump-revision (etcdutl snapshot restore)")
    s = Server()
    e = s.ep
    for i in range(5):
        r = e.put("s", str(i))
    d = tempfile.mkdtemp(dir=TMP)
    snap = os.path.join(d, "x.snap")
    e.ctl_ok("snapshot", "save", snap, extra=("--command-timeout=20s",), timeout=30)
    s.stop()
    n = Server(name="r1", start=False)
    dd = os.path.join(d, "restored")
    p = subprocess.run(shlex.split(ARGS.restore_cmd) + [snap, "--name", "r1", "--data-dir", dd, "--initial-cluster", f"r1={n.peer}",
                       "--initial-advertise-peer-urls", n.peer, "--bump-revision", "1000000", "--mark-compacted"], capture_output=True, timeout=60)
    check(p.returncode == 0, f"restore: {short(p.stderr.decode('utf-8', 'replace'))}")
    n.args[n.args.index("--data-dir") + 1] = dd
    n.start()
    js = n.ep.rng("s")
    check(int(js["header"]["revision"]) >= r + 1000000, f"revision after a bump: {js['header']}")
    eq(unb64(js["kvs"][0]["value"]), b"4", "value after restore")
    w = n.ep.watch({"key": b64("s"), "start_revision": str(r + 10)})
    w.created()
    m = w.next(what="cancel")
    check(m.get("canceled") is True and int(m.get("compact_revision", 0)) > r, f"old watcher: {short(m)}")
    w.close()


@C(60, "a delete at the compacted revision reaches a watch from it also after a restart", own=True, fixed="3.4.36,3.5.18,3.6.0")
def _(e0):
    s = Server()
    e = s.ep
    e.put("a", "1")
    r1 = e.ok("/kv/deleterange", {"key": b64("a")})["header"]["revision"]
    e.ok("/kv/compaction", {"revision": r1, "physical": True})
    e.put("b", "2")
    s.kill9()
    s.start()
    w = e.watch({"key": b64(NUL), "range_end": b64(NUL), "start_revision": r1})
    w.created()
    ev = w.events(2)
    eq([(x.get("type", "PUT"), unb64(x["kv"]["key"])) for x in ev], [("DELETE", b"a"), ("PUT", b"b")], "events from the compacted revision")
    w.close()




# --------------------------------------------------------------------------- main
def parse_only(s):
    """Numbers and ranges with commas or white space between; or a file of them, where # begins a comment."""
    out = set()
    if s and os.path.isfile(s):
        s = " ".join(line.split("#")[0] for line in open(s))
    for part in re.split(r"[,\s]+", s or ""):
        if "-" in part:
            a, b = part.split("-")
            out |= set(range(int(a), int(b) + 1))
        elif part:
            out.add(int(part))
    return out


def main():
    global ARGS, TMP
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--endpoint", help="http(s)://host:port of a throw-away server")
    ap.add_argument("--server-cmd", help="command to start a server; etcd's flags are appended")
    ap.add_argument("--etcdctl", default="etcdctl")
    ap.add_argument("--restore-cmd", help="default: '<etcdctl> snapshot restore'")
    ap.add_argument("--only", help="case numbers, e.g. 3,17-20, or a file that lists them")
    ap.add_argument("--without", help="services whose steps are left out where a case can do without them: watch, lease")
    ap.add_argument("--assume-version", help="judge by this release instead of the one /version reports")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--verbose", action="store_true")
    ARGS = ap.parse_args()
    cases = sorted(CASES, key=lambda c: c["num"])
    only = parse_only(ARGS.only)
    cases = [c for c in cases if (not only or c["num"] in only)]
    if ARGS.list:
        for c in cases:
            print(f"{c['num']:03d} {c['mark']} {'own ' if c['own'] else 'any '} {c['title']}")
        return 0
    if not ARGS.endpoint and not ARGS.server_cmd:
        ap.error("give --endpoint, --server-cmd or both")
    TMP = tempfile.mkdtemp(prefix="bb-")
    atexit.register(lambda: shutil.rmtree(TMP, ignore_errors=True))
    atexit.register(stop_all)
    for sg in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sg, lambda *_: sys.exit(130))
    shared = None
    try:
        if ARGS.endpoint:
            ep = Endpoint(ARGS.endpoint)
        else:
            shared = Server()
            ep = shared.ep
        st, out = ep.http("GET", "/version")
        RUN["version"] = ver(json.loads(out).get("etcdserver")) if st == 200 else (0, 0, 0)
    except (Fail, OSError, ValueError) as x:
        print(f"cannot reach a server: {x}")
        return 2
    print(f"# server version {'.'.join(map(str, RUN['version']))}, judged as {'.'.join(map(str, cur_version()))}", flush=True)
    n = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    t00 = time.time()
    for c in cases:
        t0, why = time.time(), ""
        before = set(map(id, LIVE))
        try:
            if c["own"] and not ARGS.server_cmd:
                raise Skip("needs --server-cmd")
            if c["since"] and cur_version() < ver(c["since"]):
                raise Skip(f"feature exists from {c['since']}")
            note = c["fn"](ep)
            verdict, why = "PASS", note or ""
        except Skip as x:
            verdict, why = "SKIP", str(x)
        except Fail as x:
            verdict, why = "FAIL", str(x)
        except Exception as x:
            verdict, why = "FAIL", f"{type(x).__name__}: {x}"
            if ARGS.verbose:
                import traceback
                traceback.print_exc()
        if verdict == "FAIL" and c["fixed"] and not is_fixed(cur_version(), c["fixed"]):
            verdict, why = "SKIP", f"known defect of this version, right from {c['fixed']}: {why}"
        for s in [s for s in LIVE if id(s) not in before]:
            s.stop()
        n[verdict] += 1
        why = short(" ".join(why.split()), 420)
        print(f"{verdict} {c['num']:03d} [{c['mark']}] {c['title']} ({time.time()-t0:.1f}s)" + (f": {why}" if why else ""), flush=True)
    print(f"# {time.time()-t00:.0f}s")
    print(f"{n['PASS']} passed, {n['FAIL']} failed, {n['SKIP']} skipped")
    stop_all()
    return 1 if n["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
