/** The three endpoints of the contract. */

import { isUtf8 } from "node:buffer";
import { create } from "@bufbuild/protobuf";
import type { FastifyInstance, FastifyRequest, onRequestHookHandler } from "fastify";
import type { Admission } from "../admission/admission.ts";
import type { Call } from "../core/call.ts";
import { checkIdempotencyKey } from "../core/idempotency-key.ts";
import type { VerificationService } from "../core/service.ts";
import { Failure, type FieldViolation } from "../failures.ts";
import {
  CancelVerificationRequestSchema,
  GetVerificationRequestSchema,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { admitting, stillAdmitting } from "./admit.ts";
import { type CreateVerificationBody, toCreateVerificationRequest, toViolations } from "./create-request.ts";
import { createLargeBodyTurns, largeBodyBytes } from "./large-bodies.ts";
import type { Overload } from "./overload.ts";
import { presentCreatedVerification, presentVerification } from "./presenter.ts";
import { setUsage } from "./refusal.ts";
import { apiError, createdVerification, createVerificationBody, verificationResult } from "./schemas.ts";

interface VerificationRoute {
  Params: { verification_id: string };
}

/** A plugin to be registered in a scope of its own: its hooks and parsers apply only to these routes. */
export function verificationRoutes(
  verifications: VerificationService,
  admission: Admission,
  overload: Overload,
) {
  return async (scope: FastifyInstance): Promise<void> => {
    const largeBodies = createLargeBodyTurns();
    scope.addContentTypeParser("application/json", { parseAs: "buffer" }, ({ call, raw }, body, done) => {
      const parse = () => parseJson(body as Buffer);
      if (body.length <= largeBodyBytes || call?.caller.kind !== "merchant") done(null, parse());
      else
        largeBodies
          .turnOf(call.caller.project.id, () => raw.socket.destroyed)
          .then(parse)
          .then((parsed) => done(null, parsed), done);
    });

    scope.post<{ Body: CreateVerificationBody }>(
      "/v1/verifications",
      {
        onRequest: [admitting(admission, overload, "create"), requireCreationHeaders],
        preValidation: stillAdmitting(admission),
        attachValidation: true,
        // The default puts all violations into one message, which nobody reads.
        schemaErrorFormatter: () => new Error("the body has invalid fields"),
        schema: {
          body: createVerificationBody,
          response: { 201: createdVerification, 200: createdVerification, "4xx": apiError, "5xx": apiError },
        },
      },
      async (request, reply) => {
        const violations = toViolations(request.validationError?.validation);
        const call = callOf(request, violations);
        const message = toCreateVerificationRequest(idempotencyKeyOf(request), request.body, violations);
        const created = await verifications.createVerification(message, call);
        setUsage(reply);
        reply.header("idempotent-replayed", created.idempotentReplayed ? "true" : "false");
        reply.code(created.idempotentReplayed ? 200 : 201);
        return presentCreatedVerification(created);
      },
    );

    scope.get<VerificationRoute>(
      "/v1/verifications/:verification_id",
      {
        onRequest: admitting(admission, overload, "read"),
        schema: { response: { 200: verificationResult, "4xx": apiError, "5xx": apiError } },
      },
      async (request, reply) => {
        const message = create(GetVerificationRequestSchema);
        message.verificationId = verificationId(request);
        const { verification } = await verifications.getVerification(message, callOf(request));
        setUsage(reply);
        return presentVerification(verification);
      },
    );

    scope.register(async (bodyless) => {
      // Read to its end, so that the size limit applies and the connection can be reused; then dropped.
      bodyless.addContentTypeParser("*", { parseAs: "buffer" }, (_request, _body, done) => done(null));

      bodyless.post<VerificationRoute>(
        "/v1/verifications/:verification_id/cancel",
        {
          onRequest: [forgetContentType, admitting(admission, overload, "cancel")],
          preValidation: stillAdmitting(admission),
          schema: { response: { 200: verificationResult, "4xx": apiError, "5xx": apiError } },
        },
        async (request, reply) => {
          const message = create(CancelVerificationRequestSchema);
          message.verificationId = verificationId(request);
          const { verification } = await verifications.cancelVerification(message, callOf(request));
          setUsage(reply);
          return presentVerification(verification);
        },
      );
    });
  };
}

function callOf(request: FastifyRequest, violations: readonly FieldViolation[] = []): Call {
  if (request.call === undefined) throw new Error("a call reached its handler without admission");
  if (violations.length > 0) request.call = { ...request.call, violations };
  return request.call;
}

/** `/v1/verifications/` matches with an empty id, but is no route of the contract. */
function verificationId(request: FastifyRequest<VerificationRoute>): string {
  const id = request.params.verification_id;
  if (id === "") throw new Failure("route_not_found");
  return id;
}

/** Empty if there is none. A key that is sent twice arrives joined by a comma, and is invalid. */
function idempotencyKeyOf(request: FastifyRequest): string {
  return String(request.headers["idempotency-key"] ?? "");
}

/** Runs before the body is read. Fastify itself refuses media types other than JSON. */
const requireCreationHeaders: onRequestHookHandler = (request, _reply, done) => {
  checkIdempotencyKey(idempotencyKeyOf(request));
  if (request.headers["content-type"] === undefined) throw new Failure("unsupported_content_type");
  if (isCoded(request.headers["content-encoding"]))
    throw new Failure("invalid_json", { message: compressed });
  done();
};

/** Without this, Fastify would refuse an invalid media type before it asks any parser. */
const forgetContentType: onRequestHookHandler = (request, _reply, done) => {
  delete request.headers["content-type"];
  done();
};

const compressed = "The body is compressed: send it uncompressed, as one JSON object in UTF-8.";
const isCoded = (codings = "") =>
  codings.split(",").some((coding) => !["", "identity"].includes(coding.trim().toLowerCase()));
const isGzip = (body: Buffer) => body[0] === 0x1f && body[1] === 0x8b;
const marked = "The body begins with a byte order mark, which JSON does not allow: remove those three bytes.";

/** Of duplicate members the last counts, and `__proto__` is a member like any other. */
function parseJson(body: Buffer): unknown {
  if (!isUtf8(body)) throw new Failure("invalid_json", isGzip(body) ? { message: compressed } : {});
  const text = body.toString();
  try {
    return JSON.parse(text);
  } catch {
    throw new Failure("invalid_json", text.startsWith("\ufeff") ? { message: marked } : {});
  }
}
