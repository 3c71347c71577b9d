import { hash } from "node:crypto";
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
import { allocateCode, type CodeOccupancy, type CodePlace } from "./code-allocation.ts";
import type { Directory } from "./directory.ts";
import { checkIdempotencyKey } from "./idempotency-key.ts";
import { newIdAt } from "./ids.ts";
import { normaliseMobile, notMobile } from "./phone.ts";
import type { Environment, Project } from "./project.ts";
import { defaultSmsTemplate, renderSmsText } from "./sms-text.ts";
import { checkText } from "./text-field.ts";
import { usageLimitExceeded } from "./usage.ts";
import {
  type CreatedVerification,
  type NewVerification,
  nowhere,
  type VerificationMode,
  type Verifications,
} from "./verification.ts";
import { newWindowToken, windowTokenDigest } from "./window-token.ts";

/** A creation as sent, whichever face it came in by. Null is absent. */
export interface CreationRequest extends NamedScope {
  readonly idempotencyKey: string;
  readonly mode: VerificationMode;
  readonly expectedPhone: string | null;
  readonly clientReference: string;
  readonly state: string;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
}

export interface CreationAnswer {
  readonly created: CreatedVerification;
  readonly replayed: boolean;
}

/** A creation without a place. `no_number`: the project has none. `no_room`: all of its numbers are full. */
export interface Unplaced {
  readonly projectId: string;
  readonly environment: Environment;
  readonly reason: "no_number" | "no_room";
}

export type CreateVerification = (request: CreationRequest, call: Call) => Promise<CreationAnswer>;

const withoutNumber =
  "The project has no receiving number in this environment: an administrator has to add one.";

/** Of one creation, wherever it looks. */
const codeAttempts = 48;
/**
 * Random codes of a length that were all taken on a number: most of them are, whatever was last counted. With half of them taken
 * one creation in four thousand moves on without need, to a longer code or another number.
 */
const takenInTurn = 12;

/**
 * Creates a pending verification, or repeats the first answer to its idempotency key.
 *
 * Invariant: the call is charged at most once, in the statement that creates or finds the answer; a code that
 * was taken is replaced by further statements that charge nothing.
 */
export function createVerification(parts: {
  readonly verifications: Verifications;
  readonly directory: Directory;
  readonly occupancy: CodeOccupancy;
  /** Of ids. */
  readonly clock: Clock;
  /** The address of the window, without a slash at its end. Known once the port is. */
  readonly publicBase: { readonly url: string };
  /** Told of each verification that is new. */
  readonly onCreated: (environment: Environment) => void;
  /** Told of each one that was refused because there is no number it could wait on. */
  readonly onUnplaced: (unplaced: Unplaced) => void;
}): CreateVerification {
  const { verifications, directory, occupancy, clock } = parts;

  return async (request, call) => {
    requireScope(call.caller, "write");
    const bounds = boundsOf(call.caller, request);
    checkIdempotencyKey(request.idempotencyKey);
    const named = call.caller.kind === "merchant" ? call.caller.project : await findProject(bounds.projectId);
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

    const found = directory.numbersFor(projectId, environment);
    const numbers = (found instanceof Promise ? await found : found).map(({ number }) => number);
    const requestDigest = digestOf(request);
    const now = clock.now();
    const id = newIdAt(now instanceof Promise ? await now : now);
    const chargeTo = chargedProject(call.caller);
    const rooms = new Rooms(occupancy);

    let verification = await withFreeCode();
    if (verification === null) {
      // What was answered once is answered again, room or no room, and whatever the project has registered since.
      const { known, exhaustedForSeconds } = await verifications.peekCreation({
        projectId,
        environment,
        idempotencyKey: request.idempotencyKey,
      });
      if (exhaustedForSeconds !== null && chargeTo !== null) throw usageLimitExceeded(exhaustedForSeconds);
      if (!known) throw refusal();
      verification = at({ destination: nowhere, length: project.codeLength });
    }
    const { usage, value } = await verifications.create(verification, chargeTo);
    let outcome = value;
    for (let attempt = 1; outcome.kind === "code_taken"; attempt++) {
      rooms.met(verification);
      const again = attempt < codeAttempts ? await withFreeCode() : null;
      // It has been counted, and a number that was shown cannot be taken back; but a 503 is not reported as counted.
      if (again === null) throw refusal();
      verification = again;
      outcome = (await verifications.create(again, null)).value;
    }
    call.usage = usage;
    if (outcome.kind === "conflict") throw new Failure("idempotency_conflict");
    if (outcome.kind === "created") {
      clock.learn(outcome.created.verification.createdAt);
      occupancy.add(verification.destination, project.codeFormat, verification.code.length);
      parts.onCreated(environment);
    }
    return { created: outcome.created, replayed: outcome.kind === "replayed" };

    function refusal(): Failure {
      if (unregistered.length > 0) return new Failure("validation_failed", { fields: unregistered });
      const reason = numbers.length === 0 ? "no_number" : "no_room";
      parts.onUnplaced({ projectId, environment, reason });
      return new Failure("no_receiving_number", reason === "no_number" ? { message: withoutNumber } : {});
    }

    /** Null where there can be no new one. */
    async function withFreeCode(): Promise<NewVerification | null> {
      if (unregistered.length > 0) return null;
      const place = allocateCode(numbers, project.codeFormat, project.codeLength, rooms.asSeen);
      if (place === null) return null;
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

/** What is known of the codes in use, and what one creation has met besides. */
class Rooms {
  asSeen: Pick<CodeOccupancy, "pending" | "barred">;
  readonly #occupancy: CodeOccupancy;
  /** How many codes were taken, by number and length. */
  readonly #taken = new Map<string, number>();

  constructor(occupancy: CodeOccupancy) {
    this.#occupancy = occupancy;
    this.asSeen = occupancy;
  }

  /** A code that was taken. */
  met({ destination, code }: NewVerification): void {
    const place = `${destination} ${code.length}`;
    this.#taken.set(place, (this.#taken.get(place) ?? 0) + 1);
    this.asSeen = {
      pending: (...asked) => this.#occupancy.pending(...asked),
      barred: (number, format, length) =>
        (this.#taken.get(`${number} ${length}`) ?? 0) >= takenInTurn
          ? Number.POSITIVE_INFINITY
          : this.#occupancy.barred(number, format, length),
    };
  }
}

/** A service token says where it creates; a merchant's key has said it. */
function missingBounds({ projectId, environment }: Bounds): FieldViolation[] {
  const missing: FieldViolation[] = [];
  if (projectId === null) missing.push(missingProject);
  if (environment === null)
    missing.push({ field: "environment", message: "is required from a service token: live or test" });
  return missing;
}

/** Of text fields, in code points. */
export const creationLimits = {
  expectedPhone: 32,
  clientReference: 160,
  state: 256,
  parentOrigin: 2048,
  returnUrl: 2048,
};

/** What is wrong with it whatever the project has registered. */
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
      message: "is required where mode is match: a 010 mobile number, such as 010-1234-5678",
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

/** What the project does not have registered, or no longer. */
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

/** What is registered is the caller's own, and no secret from it. */
function mustBeRegistered(what: "origin" | "URL", registered: string | null): string {
  return registered === null
    ? `must be left out: the project has no such ${what} registered`
    : `must equal the ${what} registered for the project, ${registered}`;
}

/**
 * Compared as origins: case, default port and a lone slash at the end make no difference, a path does, nor does it whether a name
 * is written as browsers write it (`xn--…`) or as people do.
 */
function sameOrigin(sent: string, registered: string | null): boolean {
  const url = URL.parse(registered ?? "");
  if (url === null) return false;
  if (sent === registered) return true;
  // Nothing of what a URL parser would mend.
  if (/^https?:\/\/[a-z0-9._:[\]-]+\/?$/i.test(sent)) return URL.parse(sent)?.origin === url.origin;
  const written = `${url.protocol}//${domainToUnicode(url.hostname)}`;
  const ports = url.port === "" ? ["", url.protocol === "https:" ? ":443" : ":80"] : [`:${url.port}`];
  return ports.some((port) => sent.toLowerCase().replace(/\/$/, "") === written + port);
}

/** Values count as sent; member order and explicit defaults do not, since this is made of the parsed request. */
function digestOf(request: CreationRequest): string {
  return hash(
    "sha256",
    JSON.stringify([
      request.mode,
      request.expectedPhone,
      request.clientReference,
      request.state,
      request.parentOrigin,
      request.returnUrl,
    ]),
    "hex",
  );
}
