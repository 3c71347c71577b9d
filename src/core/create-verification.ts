import { domainToUnicode } from "node:url";
import { Failure, type FieldViolation } from "../failures.ts";
import {
  type Bounds,
  boundsOf,
  chargedProject,
  missingProject,
  type NamedScope,
  noSuchProject,
  requireScope,
} from "./access.ts";
import type { Call } from "./call.ts";
import type { Clock } from "./clock.ts";
import { newCode } from "./code.ts";
import { allocateCode, type CodeOccupancy, type CodePlace, ObservedOccupancy } from "./code-allocation.ts";
import type { Directory } from "./directory.ts";
import { checkIdempotencyKey } from "./idempotency-key.ts";
import { newIdAt } from "./ids.ts";
import { normaliseMobile, notMobile } from "./phone.ts";
import type { Environment, Project } from "./project.ts";
import { type DigestedRequest, requestDigestOf } from "./request-digest.ts";
import { defaultSmsTemplate, renderSmsText } from "./sms-text.ts";
import { checkText } from "./text-field.ts";
import { usageLimitExceeded } from "./usage.ts";
import {
  type CreatedVerification,
  type CreationOutcome,
  type NewVerification,
  noDestination,
  type RepeatableOutcome,
  type Verifications,
} from "./verification.ts";
import { newWindowToken, windowTokenDigest } from "./window-token.ts";

/** A creation request as sent over REST or gRPC. Null: absent. */
export interface CreationRequest extends NamedScope, DigestedRequest {
  readonly idempotencyKey: string;
}

export interface CreationAnswer {
  readonly created: CreatedVerification;
  readonly replayed: boolean;
}

/** A creation that found no number for its code. `no_number`: the project has none; `no_room`: all of its numbers are full. */
export interface Unplaced {
  readonly projectId: string;
  readonly environment: Environment;
  readonly reason: "no_number" | "no_room";
}

export type CreateVerification = (request: CreationRequest, call: Call) => Promise<CreationAnswer>;

const withoutNumber =
  "The project has no receiving number in this environment: an administrator must add one.";

/** The most codes one creation tries, over all numbers and lengths. */
const codeAttempts = 48;

/**
 * Creates a pending verification, or replays the first response to its idempotency key.
 *
 * Invariant: the call is charged at most once, by the statement that creates the verification or finds the response. If the
 * code was taken, its number has been removed, or the clock by which the id was made has been set, further statements try others and
 * charge nothing.
 */
export function createVerification(parts: {
  readonly verifications: Verifications;
  readonly directory: Directory;
  readonly occupancy: CodeOccupancy;
  /** Provides the time for new ids. */
  readonly clock: Clock;
  /** The base URL of windows, without a trailing slash. Set once the port is known. */
  readonly publicBase: { readonly url: string };
  /** Called for each new verification. */
  readonly onCreated: (environment: Environment, projectId: string) => void;
  /** Called for each creation that was refused because there was no number for its code. */
  readonly onUnplaced: (unplaced: Unplaced) => void;
}): CreateVerification {
  const { verifications, directory, occupancy, clock } = parts;

  return async (request, call) => {
    requireScope(call.caller, "write");
    const bounds = boundsOf(call.caller, request);
    const named = call.caller.kind === "merchant" ? call.caller.project : await findProject(bounds.projectId);
    checkIdempotencyKey(request.idempotencyKey);
    const expectedPhone = request.mode === "match" ? normaliseMobile(request.expectedPhone ?? "") : null;
    const malformed = [...call.violations, ...checkForm(request, expectedPhone)];
    const unregistered = named === null ? [] : checkRegistered(request, named);
    if (malformed.length > 0 || named === null || bounds.environment === null) {
      const fields = [...malformed, ...missingBounds(bounds), ...unregistered];
      throw new Failure("validation_failed", { fields });
    }
    const project = named;
    const projectId = project.id;
    const environment = bounds.environment;

    // Before the number is chosen, so that the id is never younger than that choice.
    const now = clock.now();
    let id = newIdAt(now instanceof Promise ? await now : now);
    const found = directory.numbersFor(projectId, environment);
    let numbers = found instanceof Promise ? await found : found;
    const requestDigest = requestDigestOf(request);
    const chargeTo = chargedProject(call.caller);
    const observed = new ObservedOccupancy(occupancy);

    try {
      let verification = await withFreeCode();
      if (verification === null) {
        // A stored response is replayed even if there is no room now, and whatever the project has registered since.
        const { known, exhaustedForSeconds } = await verifications.peekCreation({
          projectId,
          environment,
          idempotencyKey: request.idempotencyKey,
        });
        if (exhaustedForSeconds !== null && chargeTo !== null) throw usageLimitExceeded(exhaustedForSeconds);
        if (!known) throw refusal();
        verification = at({ destination: noDestination, length: project.codeLength });
      }
      const { usage, value } = await verifications.create(verification, chargeTo);
      let outcome = value;
      for (let attempt = 1; isRepeatable(outcome); attempt++) {
        if (outcome.kind === "code_taken") observed.recordCollision(verification);
        else {
          if (outcome.kind === "id_outdated") {
            clock.learn(outcome.now);
            id = newIdAt(outcome.now);
          }
          numbers = await directory.numbersNow(projectId, environment);
        }
        observed.release();
        const again = attempt < codeAttempts ? await withFreeCode() : null;
        if (again === null) {
          const refused = refusal();
          // The call is already charged, and usage counts that other responses have reported cannot be taken back; a 503 just
          // reports no usage. A failure that counts as usage must not charge the call a second time.
          if (refused.code === "validation_failed") call.usage = usage;
          throw refused;
        }
        verification = again;
        outcome = (await verifications.create(again, null)).value;
      }
      call.usage = usage;
      if (outcome.kind === "conflict") {
        // Only a request that is a repeat is excused from what has been registered since.
        if (unregistered.length > 0) throw new Failure("validation_failed", { fields: unregistered });
        throw new Failure("idempotency_conflict");
      }
      if (outcome.kind === "created") {
        clock.learn(outcome.created.verification.createdAt);
        occupancy.add(verification.destination, project.codeFormat, verification.code.length);
        parts.onCreated(environment, projectId);
      }
      return { created: outcome.created, replayed: outcome.kind === "replayed" };
    } finally {
      observed.release();
    }

    function refusal(): Failure {
      if (unregistered.length > 0) return new Failure("validation_failed", { fields: unregistered });
      const reason = numbers.length === 0 ? "no_number" : "no_room";
      parts.onUnplaced({ projectId, environment, reason });
      return new Failure("no_receiving_number", reason === "no_number" ? { message: withoutNumber } : {});
    }

    /** Null if nothing new can be created. */
    async function withFreeCode(): Promise<NewVerification | null> {
      if (unregistered.length > 0) return null;
      const destinations = numbers.map(({ number }) => number);
      const place = allocateCode(destinations, project.codeFormat, project.codeLength, observed.current);
      if (place === null) return null;
      observed.reserve(place, project.codeFormat);
      if (place.length !== project.codeLength)
        await directory.addCodeLength(project.codeFormat, place.length);
      return at(place);
    }

    function at(place: CodePlace): NewVerification {
      const code = newCode(project.codeFormat, place.length);
      const token = newWindowToken();
      return {
        id,
        projectId,
        environment,
        idempotencyKey: request.idempotencyKey,
        requestDigest,
        mode: request.mode,
        expectedPhone,
        clientReference: request.clientReference,
        state: request.state,
        parentOrigin: request.parentOrigin,
        returnUrl: request.returnUrl,
        validitySeconds: project.validitySeconds,
        destination: place.destination,
        code,
        codeFormat: project.codeFormat,
        smsText: renderSmsText(project.smsTemplate ?? defaultSmsTemplate, project.name, code),
        verificationUrl: `${parts.publicBase.url}/v/${token}`,
        windowDigest: windowTokenDigest(token),
      };
    }
  };

  async function findProject(id: string | null): Promise<Project | null> {
    if (id === null) return null;
    const project = await directory.project(id);
    if (project === null) throw noSuchProject();
    if (project.suspended) throw new Failure("project_suspended");
    return project;
  }
}

/** Whether nothing was created, and another statement may. */
function isRepeatable(outcome: CreationOutcome): outcome is RepeatableOutcome {
  return outcome.kind === "code_taken" || outcome.kind === "number_removed" || outcome.kind === "id_outdated";
}

/** A service token must name project and environment; a merchant's key determines them. */
function missingBounds({ projectId, environment }: Bounds): FieldViolation[] {
  const missing: FieldViolation[] = [];
  if (projectId === null) missing.push(missingProject);
  if (environment === null)
    missing.push({ field: "environment", message: "is required with a service token: live or test" });
  return missing;
}

/** Maximum lengths of text fields, in code points. */
export const creationLimits = {
  expectedPhone: 32,
  clientReference: 160,
  state: 256,
  parentOrigin: 2048,
  returnUrl: 2048,
};

/** Violations that do not depend on what the project has registered. */
function checkForm(request: CreationRequest, expectedPhone: string | null): FieldViolation[] {
  const violations: FieldViolation[] = [];
  const add = (violation: FieldViolation | undefined) => {
    if (violation) violations.push(violation);
    return violation === undefined;
  };
  if (request.expectedPhone !== null) {
    const sound = add(
      checkText("expected_phone", request.expectedPhone, { max: creationLimits.expectedPhone }),
    );
    if (sound && request.mode === "match" && expectedPhone === null) {
      violations.push(notMobile("expected_phone"));
    }
  } else if (request.mode === "match") {
    violations.push({
      field: "expected_phone",
      message: "is required if mode is match: a 010 mobile number, such as 010-1234-5678",
    });
  }
  add(checkText("client_reference", request.clientReference, { max: creationLimits.clientReference }));
  add(checkText("state", request.state, { max: creationLimits.state }));
  if (request.parentOrigin !== null) {
    add(checkText("parent_origin", request.parentOrigin, { max: creationLimits.parentOrigin }));
  }
  if (request.returnUrl !== null)
    add(checkText("return_url", request.returnUrl, { max: creationLimits.returnUrl }));
  return violations;
}

/** Values that must equal the project's registered ones and do not, or no longer do. */
function checkRegistered({ parentOrigin, returnUrl }: CreationRequest, project: Project): FieldViolation[] {
  const violations: FieldViolation[] = [];
  if (parentOrigin !== null && !sameOrigin(parentOrigin, project.parentOrigin)) {
    violations.push({ field: "parent_origin", message: mustBeRegistered("origin", project.parentOrigin) });
  }
  if (returnUrl !== null && returnUrl !== project.returnUrl) {
    violations.push({ field: "return_url", message: mustBeRegistered("URL", project.returnUrl) });
  }
  return violations;
}

/** Names the registered value, which is no secret: it is the caller's own. */
function mustBeRegistered(what: "origin" | "URL", registered: string | null): string {
  return registered === null
    ? `must be left out: the project has no ${what} registered`
    : `must equal the ${what} registered for the project, ${registered}`;
}

/**
 * Compares as origins: case, the default port, a single trailing slash, and whether the host name is in ASCII (`xn--…`) or
 * Unicode form make no difference; a path does.
 */
function sameOrigin(sent: string, registered: string | null): boolean {
  const url = URL.parse(registered ?? "");
  if (url === null) return false;
  if (sent === registered) return true;
  // A strict pattern, so that nothing passes only because the URL parser repairs it.
  if (/^https?:\/\/[a-z0-9._:[\]-]+\/?$/i.test(sent)) return URL.parse(sent)?.origin === url.origin;
  const written = `${url.protocol}//${domainToUnicode(url.hostname)}`;
  const ports = url.port === "" ? ["", url.protocol === "https:" ? ":443" : ":80"] : [`:${url.port}`];
  return ports.some((port) => sent.toLowerCase().replace(/\/$/, "") === written + port);
}
