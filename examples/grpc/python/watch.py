"""Creates a verification and watches it until it ends: python3 watch.py PROJECT_ID"""

import random
import sys
import time
import uuid

import grpc
from phoneproof import connect, detail_of, enum_name, message, method, told_of, usage

PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}
PASSING_CODES = {"service_unavailable", "internal_error", "rate_limited"}
ENVIRONMENT_TEST = 2

if len(sys.argv) != 2:
    usage("python3 watch.py PROJECT_ID")

channel, metadata = connect()
create = method(channel, "VerificationService", "CreateVerification")
watch = method(channel, "VerificationService", "WatchVerification")


def persistently(call):
    """Retries temporary errors, with growing pauses, until there is a result."""
    attempt = 0
    while True:
        least = 0
        try:
            result = call()
            if result is not None:
                return result
        except grpc.RpcError as error:
            detail = detail_of(error)
            # If the service answered, its code decides; otherwise the gRPC status does.
            passes = error.code() in PASSING if detail is None else detail.code in PASSING_CODES
            if not passes:
                sys.exit(told_of(error))
            least = 0 if detail is None else detail.retry_after_seconds
            if attempt == 0:
                print("trying again:", error.details(), file=sys.stderr)
        time.sleep(max(least, min(5, 0.1 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1)))
        attempt += 1


def until_finished(verification_id):
    """Returns the finished verification; None if the watch ended before it did."""
    # No timeout: a watch lasts as long as the verification. Its first message is the current state.
    request = message("WatchVerificationRequest")(verification_id=verification_id)
    for response in watch(request, metadata=metadata):
        if enum_name("VerificationStatus", response.verification.status) != "PENDING":
            return response.verification
    return None


# Built once, so that every attempt has the same idempotency key and only one verification is created.
creation = message("CreateVerificationRequest")(
    project_id=sys.argv[1], environment=ENVIRONMENT_TEST, idempotency_key=str(uuid.uuid4())
)
created = persistently(lambda: create(creation, metadata=metadata, timeout=5))
print("pending", created.verification.id, created.destination, created.sms_text, flush=True)

finished = persistently(lambda: until_finished(created.verification.id))
print(enum_name("VerificationStatus", finished.status).lower(), finished.phone)
