"""Creates a verification and watches it to its end: python3 watch.py PROJECT_ID"""

import random
import sys
import time
import uuid

import grpc
from phoneproof import connect, enum_name, message, method

PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}
ENVIRONMENT_TEST = 2

channel, metadata = connect()
create = method(channel, "VerificationService", "CreateVerification")
watch = method(channel, "VerificationService", "WatchVerification")


def persistently(call):
    """Tries again what is worth it, with growing pauses."""
    attempt = 0
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in PASSING:
                raise
            time.sleep(min(5, 0.1 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1))
            attempt += 1


def until_finished(verification_id):
    # No timeout: a watch lasts as long as the verification. Its first message is how things stand now.
    request = message("WatchVerificationRequest")(verification_id=verification_id)
    for response in watch(request, metadata=metadata):
        if enum_name("VerificationStatus", response.verification.status) != "PENDING":
            return response.verification
    raise RuntimeError("the watch has ended early")


# Made once: every attempt has the same key, so that one verification is made.
creation = message("CreateVerificationRequest")(
    project_id=sys.argv[1], environment=ENVIRONMENT_TEST, idempotency_key=str(uuid.uuid4())
)
created = persistently(lambda: create(creation, metadata=metadata, timeout=5))
print("pending", created.verification.id, created.destination, created.sms_text, flush=True)

finished = persistently(lambda: until_finished(created.verification.id))
print(enum_name("VerificationStatus", finished.status).lower(), finished.phone)
