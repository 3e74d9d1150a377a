"""gRPC's C core, by grpcio, as a client of a registration socket."""

import signal
import sys
import time
from urllib.parse import quote

import grpc

socket, name, endpoint, protos = sys.argv[1:]
sys.path.insert(0, protos)
messages = grpc.protos("pluginregistration/v1/registration.proto")

SERVICE = "/pluginregistration.Registration/"
INFO = messages.PluginInfo(
    type="CSIPlugin", name=name, endpoint=endpoint, supported_versions=["1.0.0"]
)
MIB = 1 << 20
# Ends a client that hangs.
signal.alarm(120)


def channel(target=f"unix:{socket}", authority=None, compression=None):
    # Else channels to one target share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    if authority is not None:
        options.append(("grpc.default_authority", authority))
    return grpc.insecure_channel(target, options, compression)


def start(channel, path, request, timeout=10, metadata=None):
    return channel.unary_unary(path).future(request, timeout, metadata)


def status(error=""):
    return messages.RegistrationStatus(plugin_registered=True, error=error).SerializeToString()


def status_of(size):
    head = len(status("x" * (size // 2))) - size // 2
    return status("x" * (size - head))


def register(channel, **options):
    info = start(channel, SERVICE + "GetInfo", b"", **options)
    notified = start(channel, SERVICE + "NotifyRegistrationStatus", status(), **options)
    check(info, notified)


def check(info, notified):
    assert messages.PluginInfo.FromString(info.result()) == INFO, info.result()
    assert notified.result() == b"", notified.result()


def refused(path, request, code, message="", **options):
    one = channel(**options)
    call = start(one, path, request)
    seen = call.code(), call.details()
    assert seen[0] == code and seen[1].startswith(message), seen
    # The channel goes on.
    if not options:
        register(one)


def one_channel():
    with channel() as one:
        register(one)
        register(one)


def fresh_channels():
    for _ in range(10):
        with channel() as info, channel() as notify:
            check(
                start(info, SERVICE + "GetInfo", b""),
                start(notify, SERVICE + "NotifyRegistrationStatus", status()),
            )


def metadata():
    fields = [("x-text", "a"), ("x-text", "b"), ("x-long", "c" * 4096), ("x-bin", b"\0\xff")]
    register(channel(), metadata=fields)


def deadlines():
    for seconds in (None, 5, 3600, 1_000_000):
        register(channel(), timeout=seconds)


def at_once():
    one = channel()
    calls = [
        (
            start(one, SERVICE + "GetInfo", b""),
            start(one, SERVICE + "NotifyRegistrationStatus", status()),
        )
        for _ in range(50)
    ]
    for info, notified in calls:
        check(info, notified)


def largest():
    with channel() as one:
        request = status_of(4 * MIB)
        assert len(request) == 4 * MIB
        assert start(one, SERVICE + "NotifyRegistrationStatus", request).result() == b""


def authority(value):
    return lambda: register(channel(authority=value))


UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
INTERNAL = grpc.StatusCode.INTERNAL
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SCENARIOS = {
    "one channel": one_channel,
    "fresh channels": fresh_channels,
    "target unix:path": lambda: register(channel(f"unix:{socket}")),
    "target unix:///path": lambda: register(channel(f"unix://{socket}")),
    "authority of the raw path": authority(socket),
    "authority of the percent-encoded path": authority(quote(socket, safe="")),
    "authority empty": authority(""),
    "authority localhost": authority("localhost"),
    "authority a b": authority("a b"),
    "authority [::1": authority("[::1"),
    "authority %": authority("%"),
    "authority é": authority("é"),
    "authority of 200 characters": authority("x" * 200),
    "metadata": metadata,
    "deadlines": deadlines,
    "100 calls at once": at_once,
    "gzip": lambda: refused(
        SERVICE + "NotifyRegistrationStatus",
        status("x" * 4096),
        UNIMPLEMENTED,
        compression=grpc.Compression.Gzip,
    ),
    "unknown method": lambda: refused(
        SERVICE + "Nope",
        b"",
        UNIMPLEMENTED,
        "unknown method Nope for service pluginregistration.Registration",
    ),
    "unknown service": lambda: refused(
        "/pluginregistration.Nope/Nope",
        b"",
        UNIMPLEMENTED,
        "unknown service pluginregistration.Nope",
    ),
    "malformed method": lambda: refused(
        "/nope", b"", UNIMPLEMENTED, 'malformed method name: "/nope"'
    ),
    "not protobuf": lambda: refused(SERVICE + "GetInfo", b"\xff", INTERNAL),
    "not UTF-8": lambda: refused(
        SERVICE + "NotifyRegistrationStatus", b"\x08\x01\x12\x01\xff", INTERNAL
    ),
    "4 MiB": largest,
    "4 MiB + 1": lambda: refused(
        SERVICE + "NotifyRegistrationStatus",
        status_of(4 * MIB + 1),
        EXHAUSTED,
        "grpc: received message larger than max (",
    ),
}

for scenario, run in SCENARIOS.items():
    since = time.monotonic()
    outcome = ["ok"]
    try:
        run()
    except Exception as error:
        outcome = ["FAILED", " ".join(f"{type(error).__name__}: {error}".split())]
    seconds = f"{time.monotonic() - since:.3f}"
    row = ["interop", f"grpcio {grpc.__version__}", scenario, outcome[0], seconds, *outcome[1:]]
    print(*row, sep="\t", flush=True)
