import { Failure, type FieldViolation } from "../../failures.ts";
import { noSuchProject, notProjectId } from "../access.ts";
import { codeLengthRange, defaultCodeFormat, defaultCodeLength } from "../code.ts";
import { decodeId } from "../ids.ts";
import { type ListRange, type PageRequest, pageOf, paginate } from "../page-token.ts";
import { type Project, validityRange } from "../project.ts";
import { checkSmsTemplate, defaultSmsTemplate } from "../sms-text.ts";
import { checkText } from "../text-field.ts";

/** The settings that a project's owner chooses. Null means the same as in `Project`. */
export type ProjectSettings = Omit<Project, "id" | "suspended" | "createdAt">;

/** The settings that a request gives: undefined ones keep their value, or get their default at creation. */
export type ProjectChanges = {
  readonly [Setting in keyof ProjectSettings]?: ProjectSettings[Setting] | undefined;
};

export interface ProjectStore {
  add(settings: ProjectSettings): Promise<Project>;
  find(id: string): Promise<Project | null>;
  /** Oldest first. */
  list(range: ListRange): Promise<Project[]>;
  /**
   * Null if there is no such project. `decide` gets the current project under its lock, so that nothing changes it meanwhile.
   */
  change(id: string, decide: (current: Project) => ProjectSettings): Promise<Project | null>;
  setSuspended(id: string, suspended: boolean): Promise<Project | null>;
}

export interface Projects {
  /** `violations`: what was found wrong while decoding, to be reported together with the rest. */
  create(settings: ProjectChanges, violations?: readonly FieldViolation[]): Promise<Project>;
  get(id: string): Promise<Project>;
  list(page: PageRequest): Promise<{ readonly projects: readonly Project[]; readonly nextPageToken: string }>;
  update(id: string, changes: ProjectChanges, violations?: readonly FieldViolation[]): Promise<Project>;
  suspend(id: string): Promise<Project>;
  resume(id: string): Promise<Project>;
}

const defaults: ProjectSettings = {
  name: "",
  codeFormat: defaultCodeFormat,
  codeLength: defaultCodeLength,
  validitySeconds: 600,
  smsTemplate: null,
  parentOrigin: null,
  returnUrl: null,
  usageLimit: null,
  rateLimitPerMinute: 6_000,
};

export function administerProjects({ projects }: { readonly projects: ProjectStore }): Projects {
  return {
    create: async (settings, violations) =>
      projects.add(checked(merged(defaults, settings), settings, violations)),
    get: async (id) => existing(await projects.find(projectUuidOf(id))),
    async list(page) {
      const { limit, range } = pageOf(page, []);
      const { items, nextPageToken } = paginate(await projects.list(range), limit, ({ id }) => id, []);
      return { projects: items, nextPageToken };
    },
    update: async (id, changes, violations) =>
      existing(
        await projects.change(projectUuidOf(id), (current) =>
          checked(merged(current, changes), changes, violations),
        ),
      ),
    suspend: async (id) => existing(await projects.setSuspended(projectUuidOf(id), true)),
    resume: async (id) => existing(await projects.setSuspended(projectUuidOf(id), false)),
  };
}

/** The UUID behind a `prj_…` id; throws not_found if it is malformed. */
export function projectUuidOf(id: string): string {
  const uuid = decodeId("prj_", id);
  if (uuid === null) throw notProjectId();
  return uuid;
}

function existing(project: Project | null): Project {
  if (project === null) throw noSuchProject();
  return project;
}

function merged(current: ProjectSettings, changes: ProjectChanges): ProjectSettings {
  const pick = <Setting extends keyof ProjectSettings>(setting: Setting): ProjectSettings[Setting] => {
    const change = changes[setting];
    return change === undefined ? current[setting] : (change as ProjectSettings[Setting]);
  };
  return {
    name: pick("name"),
    codeFormat: pick("codeFormat"),
    codeLength: pick("codeLength"),
    validitySeconds: pick("validitySeconds"),
    smsTemplate: pick("smsTemplate"),
    parentOrigin: pick("parentOrigin"),
    returnUrl: pick("returnUrl"),
    usageLimit: pick("usageLimit"),
    rateLimitPerMinute: pick("rateLimitPerMinute"),
  };
}

/** Returns the settings, or throws validation_failed with all violations. A stored name was checked when it was given. */
function checked(
  settings: ProjectSettings,
  given: ProjectChanges,
  found: readonly FieldViolation[] = [],
): ProjectSettings {
  const violations = [...found];
  const add = (violation: FieldViolation | undefined) => {
    if (violation) violations.push(violation);
  };
  if (given.name !== undefined) {
    add(checkText("name", given.name, { required: true, max: 100 }) ?? checkLegible("name", given.name));
  }
  // The permitted lengths depend on the format, so they cannot be checked if the format is invalid.
  if (!found.some(({ field }) => field === "code_format")) {
    const { min, max } = codeLengthRange(settings.codeFormat);
    add(checkWhole("code_length", settings.codeLength, min, max, ` for ${settings.codeFormat} codes`));
  }
  add(checkWhole("validity_seconds", settings.validitySeconds, validityRange.min, validityRange.max));
  add(checkWhole("rate_limit_per_minute", settings.rateLimitPerMinute, 1, 1_000_000));
  if (settings.usageLimit !== null)
    add(checkWhole("usage_limit", settings.usageLimit, 0, Number.MAX_SAFE_INTEGER, noUsageLimit));
  if (settings.parentOrigin !== null) add(checkOrigin(settings.parentOrigin));
  if (settings.returnUrl !== null) add(checkReturnUrl(settings.returnUrl));
  if (violations.length === 0) violations.push(...checkTemplate(settings));
  if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
  return settings;
}

const noUsageLimit = "; for no limit, leave it out at creation, and send -1 in an update";

function checkTemplate(settings: ProjectSettings): readonly FieldViolation[] {
  return checkSmsTemplate({
    template: settings.smsTemplate ?? defaultSmsTemplate,
    projectName: settings.name,
    codeFormat: settings.codeFormat,
    codeLength: settings.codeLength,
  });
}

const visible = /[^\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/u;
/** Directional embeddings, overrides and isolates reorder the text around them: a window could show a wrong name. */
const unsafeCharacters = /[\p{Cc}\p{Zl}\p{Zp}\u202A-\u202E\u2066-\u2069]/u;

/** The name must be readable: it is the only way for the person who is to send the SMS to recognise somebody else's request. */
function checkLegible(field: string, text: string): FieldViolation | undefined {
  if (!visible.test(text)) return { field, message: "must not be blank" };
  if (unsafeCharacters.test(text)) {
    return {
      field,
      message: "must not contain control characters or characters that change the writing direction",
    };
  }
  return undefined;
}

function checkWhole(
  field: string,
  value: number,
  min: number,
  max: number,
  of = "",
): FieldViolation | undefined {
  if (Number.isInteger(value) && value >= min && value <= max) return undefined;
  return { field, message: `must be a whole number from ${min} to ${max}${of}` };
}

function checkOrigin(origin: string): FieldViolation | undefined {
  const field = "parent_origin";
  const text = checkText(field, origin, { max: 2048 });
  if (text) return text;
  const url = URL.parse(origin);
  const named = url !== null && /^(\[[0-9a-f:.]+\]|[a-z0-9.-]+)$/.test(url.hostname);
  if (named && isHttp(url) && url.origin === origin) return undefined;
  // The window's postMessage targets the origin exactly as browsers spell it.
  const isSpelledDifferently =
    named && isHttp(url) && (url.href === `${url.origin}/` || !/^\p{ASCII}*$/u.test(origin));
  const such = isSpelledDifferently
    ? `as a browser writes it: ${url.origin}`
    : "such as https://shop.example";
  return { field, message: `must be an http(s) origin without a path, ${such}` };
}

function checkReturnUrl(returnUrl: string): FieldViolation | undefined {
  const field = "return_url";
  const text = checkText(field, returnUrl, { max: 2048 });
  if (text) return text;
  const url = URL.parse(returnUrl);
  if (
    url !== null &&
    isAbsolute(returnUrl) &&
    url.username === "" &&
    url.password === "" &&
    !/[\s\\]/.test(returnUrl)
  ) {
    return undefined;
  }
  return { field, message: "must be an absolute http(s) URL, such as https://shop.example/done" };
}

const isHttp = (url: URL) => url.protocol === "https:" || url.protocol === "http:";

/** Rejects `https:shop.example`, which `URL` accepts as absolute but a link in a page would take as relative. */
const isAbsolute = (text: string) => /^https?:\/\/[^/]/i.test(text);
