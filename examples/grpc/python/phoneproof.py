"""The messages and services of phoneproof.v1, loaded at run time from a descriptor set, without generated code.

To build a descriptor set: buf build proto --as-file-descriptor-set -o phoneproof.binpb. Each release includes one.
"""

import os
import sys
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

def usage(line):
    """Prints how to call the program, and exits."""
    print(f"usage: {line}", file=sys.stderr)
    sys.exit(2)


if "PHONEPROOF_DESCRIPTORS" not in os.environ:
    usage(f"PHONEPROOF_DESCRIPTORS=phoneproof.binpb python3 {Path(sys.argv[0]).name} …")

_files = descriptor_pb2.FileDescriptorSet.FromString(Path(os.environ["PHONEPROOF_DESCRIPTORS"]).read_bytes())
_pool = descriptor_pool.DescriptorPool()
for _file in _files.file:
    _pool.Add(_file)

# The needed part of google.rpc.Status, in which gRPC wraps error details.
_status = descriptor_pb2.FileDescriptorProto(name="status.proto", package="wrapping", syntax="proto3")
_any = _status.message_type.add(name="Any")
_any.field.add(name="type_url", number=1, type=9, label=1)
_any.field.add(name="value", number=2, type=12, label=1)
_status.message_type.add(name="Status").field.add(
    name="details", number=3, type=11, label=3, type_name=".wrapping.Any"
)
_pool.Add(_status)

# The function's name since protobuf 4.22, and its name before.
_class_of = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(_pool).GetPrototype


def message(name):
    """Returns the class of a message, such as message("InboundMessage")."""
    return _class_of(_pool.FindMessageTypeByName(f"phoneproof.v1.{name}"))


def enum_name(enum, number):
    """Returns the name of an enum value, such as VERIFIED for InboundMessageOutcome 1."""
    name = _pool.FindEnumTypeByName(f"phoneproof.v1.{enum}").values_by_number[number].name
    return name.split("_")[-1] if enum == "VerificationStatus" else name.removeprefix("INBOUND_MESSAGE_OUTCOME_")


def detail_of(error):
    """Returns the ErrorDetail that every error of the service itself has; None if the network or a proxy failed."""
    wrapped = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if wrapped is None:
        return None
    status = _class_of(_pool.FindMessageTypeByName("wrapping.Status")).FromString(wrapped)
    found = [d.value for d in status.details if d.type_url.endswith("/phoneproof.v1.ErrorDetail")]
    return message("ErrorDetail").FromString(found[0]) if found else None


def told_of(error):
    """Returns the text that is shown to a person: the error code, the request id, and each invalid field."""
    detail = detail_of(error)
    if detail is None:
        return f"{error.code().name}: {error.details()}"
    later = f", try again in {detail.retry_after_seconds} s" if detail.retry_after_seconds else ""
    wrong = "".join(f"\n  {violation.field}: {violation.message}" for violation in detail.fields)
    return f"{detail.code}: {error.details()} ({detail.request_id}{later}){wrong}"


def connect():
    """Returns a channel to PHONEPROOF_ADDRESS, and the metadata that every call sends."""
    # grpc.secure_channel(address, grpc.ssl_channel_credentials()) if the service uses TLS.
    channel = grpc.insecure_channel(
        os.environ.get("PHONEPROOF_ADDRESS", "127.0.0.1:50051"),
        # Ends the stream if the network connection silently vanished, and reconnects soon after a lost connection.
        options=[("grpc.keepalive_time_ms", 20_000), ("grpc.max_reconnect_backoff_ms", 1_000)],
    )
    return channel, [("authorization", f"Bearer {os.environ.get('PHONEPROOF_TOKEN', '')}")]


def method(channel, service, name):
    """Returns the callable of a method, such as method(channel, "VerificationService", "GetVerification")."""
    methods = [m for f in _files.file for s in f.service if s.name == service for m in s.method]
    found = next((m for m in methods if m.name == name), None)
    if found is None:
        sys.exit(f"{os.environ['PHONEPROOF_DESCRIPTORS']} has no {service}.{name}: build it again from the current proto files")
    kind = f"{'stream' if found.client_streaming else 'unary'}_{'stream' if found.server_streaming else 'unary'}"
    return getattr(channel, kind)(
        f"/phoneproof.v1.{service}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=_class_of(_pool.FindMessageTypeByName(found.output_type[1:])).FromString,
    )
