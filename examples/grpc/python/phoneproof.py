"""Messages and services of phoneproof.v1, read at run time from a descriptor set: no generated code.

buf build proto --as-file-descriptor-set -o phoneproof.binpb makes one; each release brings its own.
"""

import os
import sys
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

def usage(line):
    """Ends a program that was not called so."""
    print(f"usage: {line}", file=sys.stderr)
    sys.exit(2)


if "PHONEPROOF_DESCRIPTORS" not in os.environ:
    usage(f"PHONEPROOF_DESCRIPTORS=phoneproof.binpb python3 {Path(sys.argv[0]).name} …")

_files = descriptor_pb2.FileDescriptorSet.FromString(Path(os.environ["PHONEPROOF_DESCRIPTORS"]).read_bytes())
_pool = descriptor_pool.DescriptorPool()
for _file in _files.file:
    _pool.Add(_file)

# As much as is needed of google.rpc.Status, in which gRPC wraps details.
_status = descriptor_pb2.FileDescriptorProto(name="status.proto", package="wrapping", syntax="proto3")
_any = _status.message_type.add(name="Any")
_any.field.add(name="type_url", number=1, type=9, label=1)
_any.field.add(name="value", number=2, type=12, label=1)
_status.message_type.add(name="Status").field.add(
    name="details", number=3, type=11, label=3, type_name=".wrapping.Any"
)
_pool.Add(_status)

# Its name since protobuf 4.22, and before.
_class_of = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(_pool).GetPrototype


def message(name):
    """The class of a message, such as message("InboundMessage")."""
    return _class_of(_pool.FindMessageTypeByName(f"phoneproof.v1.{name}"))


def enum_name(enum, number):
    """VERIFIED for InboundMessageOutcome 1."""
    name = _pool.FindEnumTypeByName(f"phoneproof.v1.{enum}").values_by_number[number].name
    return name.split("_")[-1] if enum == "VerificationStatus" else name.removeprefix("INBOUND_MESSAGE_OUTCOME_")


def detail_of(error):
    """The ErrorDetail that every error of the service's own has; None where the network or a proxy spoke."""
    wrapped = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if wrapped is None:
        return None
    status = _class_of(_pool.FindMessageTypeByName("wrapping.Status")).FromString(wrapped)
    found = [d.value for d in status.details if d.type_url.endswith("/phoneproof.v1.ErrorDetail")]
    return message("ErrorDetail").FromString(found[0]) if found else None


def told_of(error):
    """What a person is told: the catalogue's code, the request's id, and each field that is wrong."""
    detail = detail_of(error)
    if detail is None:
        return f"{error.code().name}: {error.details()}"
    later = f", try again in {detail.retry_after_seconds} s" if detail.retry_after_seconds else ""
    wrong = "".join(f"\n  {violation.field}: {violation.message}" for violation in detail.fields)
    return f"{detail.code}: {error.details()} ({detail.request_id}{later}){wrong}"


def connect():
    """A channel to PHONEPROOF_ADDRESS, and the metadata every call shows."""
    # grpc.secure_channel(address, grpc.ssl_channel_credentials()) where the service has TLS.
    channel = grpc.insecure_channel(
        os.environ.get("PHONEPROOF_ADDRESS", "127.0.0.1:50051"),
        # A network that is silently gone ends the stream, and a lost connection is soon tried again.
        options=[("grpc.keepalive_time_ms", 20_000), ("grpc.max_reconnect_backoff_ms", 1_000)],
    )
    return channel, [("authorization", f"Bearer {os.environ.get('PHONEPROOF_TOKEN', '')}")]


def method(channel, service, name):
    """A call such as method(channel, "VerificationService", "GetVerification")."""
    methods = [m for f in _files.file for s in f.service if s.name == service for m in s.method]
    found = next((m for m in methods if m.name == name), None)
    if found is None:
        sys.exit(f"{os.environ['PHONEPROOF_DESCRIPTORS']} has no {service}.{name}: make a newer one")
    kind = f"{'stream' if found.client_streaming else 'unary'}_{'stream' if found.server_streaming else 'unary'}"
    return getattr(channel, kind)(
        f"/phoneproof.v1.{service}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=_class_of(_pool.FindMessageTypeByName(found.output_type[1:])).FromString,
    )
