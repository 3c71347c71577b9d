/** phoneproof project: merchants' projects and their settings. */

import { InvalidArgumentError, Option } from "commander";
import { type Project, ProjectService, type Usage } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { requirePart } from "./cli-error.ts";
import type { CliCommand } from "./command.ts";
import { fields, grouped, localTimeWithZone, shortestText, table } from "./layout.ts";
import { nonEmpty, wholeNumber, wholeNumberOrUnlimited } from "./option-values.ts";
import type { Session } from "./session.ts";
import { allProjects, allUsage } from "./whole-lists.ts";
import { type CodeFormatWord, codeFormatOf, codeFormats, codeFormatWord, dateOf, isoTime } from "./words.ts";

interface Settings {
  readonly name?: string;
  readonly codeFormat?: CodeFormatWord;
  readonly codeLength?: number;
  readonly validity?: number;
  readonly smsTemplate?: string;
  readonly parentOrigin?: string;
  readonly returnUrl?: string;
  readonly usageLimit?: number | "unlimited";
  readonly rateLimit?: number;
}

export function addProjectCommands(program: CliCommand): void {
  const group = program
    .group("project", "Create, show and change merchants' projects.")
    .examples(
      ["a project with default settings", 'project create --name "Coffee Corner"'],
      ["all projects", "project list"],
    );

  settings(
    group
      .command("create")
      .description("Create a project.")
      .usage("--name NAME [options]")
      .requiredOption("--name <name>", "the merchant's name as its users know it; appears in the SMS text"),
    "at first",
  )
    .examples(
      ["a project with default settings", 'project create --name "Coffee Corner"'],
      [
        "six letters and digits, valid for three minutes",
        "project create --name Shop --code-format alphanumeric --code-length 6 --validity 180",
      ],
      [
        "a window that reports to its opener",
        "project create --name Shop --parent-origin https://shop.example",
      ],
    )
    .does<Settings>(async (session, options) => {
      const { project } = await session.client.call(ProjectService.method.createProject, {
        name: options.name ?? "",
        ...given(options, undefined),
        ...(typeof options.usageLimit === "number" ? { usageLimit: BigInt(options.usageLimit) } : {}),
      });
      showProject(session, project);
    });

  group
    .command("list")
    .description("List all projects, oldest first.")
    .examples(
      ["all projects", "project list"],
      ["their ids, for a script", "project list --json | jq -r '.projects[].id'"],
    )
    .does(async (session) => {
      const projects = await allProjects(session.client);
      session.answer({ projects: projects.map(projectJson) }, () => projectTable(projects));
    });

  group
    .command("show")
    .description("Show a project and its settings.")
    .argument("<id>", "the project, prj_…")
    .examples(["one project", "project show prj_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, projectId) => {
      const { project } = await session.client.call(ProjectService.method.getProject, { projectId });
      showProject(session, project);
    });

  group
    .command("usage")
    .description(
      "List how many calls projects were charged for: all projects this month, or one project month by month.",
    )
    .option("--project <id>", "only this project's, prj_…", nonEmpty)
    .option("--month <month>", "only in this calendar month in Seoul, such as 2026-11", nonEmpty)
    .examples(
      ["this month, all projects", "project usage"],
      ["last month's bill, for a script", "project usage --month 2026-10 --json"],
      ["one project's months", "project usage --project prj_01kaex4mpyf2xbtyt1s6vdr4e9"],
    )
    .does<{ project?: string; month?: string }>(async (session, { project = "", month = "" }) => {
      const usage = await allUsage(session.client, { projectId: project, month });
      session.answer({ usage: usage.map(usageJson) }, () =>
        usage.length === 0 ? "No calls were charged." : usageTable(usage),
      );
    });

  settings(
    group
      .command("update")
      .description("Change the given settings. Existing verifications keep theirs.")
      .argument("<id>", "the project, prj_…")
      .option("--name <name>", "the merchant's name as its users know it; appears in the SMS text"),
    "from now on",
  )
    .examples(
      ["half the validity", "project update prj_01kaex4mpyf2xbtyt1s6vdr4e9 --validity 300"],
      [
        "back to no limit and no return address",
        "project update prj_01kaex4mpyf2xbtyt1s6vdr4e9 --usage-limit unlimited --return-url none",
      ],
    )
    .does<Settings>(async (session, options, projectId) => {
      const { name, usageLimit } = options;
      const { project } = await session.client.call(ProjectService.method.updateProject, {
        projectId,
        name,
        ...given(options, ""),
        ...(usageLimit === undefined
          ? {}
          : { usageLimit: usageLimit === "unlimited" ? -1n : BigInt(usageLimit) }),
      });
      showProject(session, project);
    })
    .hook("preAction", (command) => {
      const settingsGiven = Object.keys(command.opts()).filter(
        (name) => !["json", "address", "token"].includes(name),
      );
      if (settingsGiven.length === 0) command.error("nothing to change: give at least one setting");
    });

  group
    .command("suspend")
    .description("Refuse every call with the project's keys until it is resumed.")
    .argument("<id>", "the project, prj_…")
    .examples(["stop a merchant within a second", "project suspend prj_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, projectId) => {
      const { project } = await session.client.call(ProjectService.method.suspendProject, { projectId });
      showProject(session, project);
    });

  group
    .command("resume")
    .description("Resume a suspended project.")
    .argument("<id>", "the project, prj_…")
    .examples(["allow a merchant's calls again", "project resume prj_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, projectId) => {
      const { project } = await session.client.call(ProjectService.method.resumeProject, { projectId });
      showProject(session, project);
    });
}

/**
 * The options that `create` and `update` share; `when` selects whether the help names defaults (create) or how to clear a value
 * (update).
 */
function settings(command: CliCommand, when: "at first" | "from now on"): CliCommand {
  const creating = when === "at first";
  const otherwise = (value: string) => (creating ? ` (default: ${value})` : "");
  const clear = (word: string, meaning: string) => (creating ? "" : `; ${word}: ${meaning}`);
  // To the service, an empty text means that the setting is cleared.
  const text = (clearingWord: string) => (value: string) => {
    if (value !== "") return value;
    const hint = creating ? "" : ` To clear the setting, write ${clearingWord}.`;
    throw new InvalidArgumentError(`It must not be empty.${hint}`);
  };
  return command
    .addOption(
      new Option("--code-format <format>", `the alphabet of codes${otherwise("numeric")}`).choices(
        codeFormats,
      ),
    )
    .option(
      "--code-length <n>",
      `characters in a code: numeric 6 to 10, alphanumeric 6 to 12${otherwise("8")}`,
      wholeNumber,
    )
    .option(
      "--validity <seconds>",
      `seconds until a verification expires, 60 to 3600${otherwise("600")}`,
      wholeNumber,
    )
    .option(
      "--sms-template <text>",
      `the SMS text, with {code} once and {project} at most once${clear("default", "the default text")}`,
      text("default"),
    )
    .option(
      "--parent-origin <origin>",
      `the origin that the window may report to${clear("none", "to no one")}`,
      text("none"),
    )
    .option("--return-url <url>", `where the window may return to${clear("none", "nowhere")}`, text("none"))
    .option(
      "--usage-limit <n>",
      `calls per calendar month, or unlimited${otherwise("unlimited")}`,
      wholeNumberOrUnlimited,
    )
    .option(
      "--rate-limit <n>",
      `calls per minute for each of create, read and cancel${otherwise("6000")}`,
      wholeNumber,
    );
}

/** The settings in the form that both requests take. `cleared` is what a request has where an option has its clearing word. */
function given(options: Settings, cleared: "" | undefined) {
  /** A word clears only the setting whose help names it: in another one it is a mistake, for the service to refuse. */
  const text = (value: string | undefined, clearingWord: string) =>
    value === clearingWord ? cleared : value;
  return {
    ...(options.codeFormat === undefined ? {} : { codeFormat: codeFormatOf[options.codeFormat] }),
    codeLength: options.codeLength,
    validitySeconds: options.validity,
    rateLimitPerMinute: options.rateLimit,
    smsTemplate: text(options.smsTemplate, "default"),
    parentOrigin: text(options.parentOrigin, "none"),
    returnUrl: text(options.returnUrl, "none"),
  };
}

function projectJson(project: Project) {
  return {
    id: project.id,
    name: project.name,
    code_format: codeFormatWord(project.codeFormat),
    code_length: project.codeLength,
    validity_seconds: project.validitySeconds,
    sms_template: project.smsTemplate,
    parent_origin: project.parentOrigin ?? null,
    return_url: project.returnUrl ?? null,
    usage_limit: project.usageLimit === undefined ? null : Number(project.usageLimit),
    rate_limit_per_minute: project.rateLimitPerMinute,
    suspended: project.suspended,
    created_at: isoTime(project.createdAt),
  };
}

function showProject(session: Session, answered: Project | undefined): void {
  const project = requirePart(answered, "a project");
  session.answer(projectJson(project), () =>
    fields([
      ["id", project.id],
      ["name", project.name],
      ["state", project.suspended ? "suspended" : "active"],
      ["codes", `${project.codeLength} characters, ${codeFormatWord(project.codeFormat)}`],
      ["validity", `${grouped(project.validitySeconds)} s`],
      ["SMS text", project.smsTemplate],
      ["parent origin", project.parentOrigin ?? null],
      ["return URL", project.returnUrl ?? null],
      ["usage limit", limitText(project)],
      ["rate limit", `${grouped(project.rateLimitPerMinute)} per minute`],
      ["created", localTimeWithZone(dateOf(project.createdAt))],
    ]),
  );
}

function limitText({ usageLimit }: Project): string {
  return usageLimit === undefined ? "unlimited" : `${grouped(Number(usageLimit))} calls per month`;
}

function projectTable(projects: readonly Project[]): string {
  if (projects.length === 0) return "No projects yet: phoneproof project create --name NAME";
  return table(
    [
      { heading: "ID", value: ({ id }) => id, rank: 1 },
      { heading: "NAME", value: ({ name }) => name, rank: 2, shortens: shortestText },
      {
        heading: "STATE",
        value: ({ suspended }) => (suspended ? "suspended" : "active"),
        rank: 3,
        colour: (state) => (state === "suspended" ? "red" : undefined),
      },
      {
        heading: "CODES",
        value: ({ codeLength, codeFormat }) => `${codeLength} ${codeFormatWord(codeFormat)}`,
        rank: 5,
      },
      {
        heading: "LIMIT",
        value: ({ usageLimit }) => (usageLimit === undefined ? "unlimited" : grouped(Number(usageLimit))),
        rank: 6,
      },
      { heading: "CREATED", value: ({ createdAt }) => dateOf(createdAt), rank: 4 },
    ],
    projects,
  );
}

function usageJson({ projectId, projectName, month, calls, usageLimit }: Usage) {
  return {
    project_id: projectId,
    project_name: projectName,
    month,
    calls: Number(calls),
    usage_limit: usageLimit === undefined ? null : Number(usageLimit),
  };
}

function usageTable(usage: readonly Usage[]): string {
  return table(
    [
      { heading: "MONTH", value: ({ month }) => month, rank: 1 },
      { heading: "PROJECT", value: ({ projectId }) => projectId, rank: 3 },
      { heading: "NAME", value: ({ projectName }) => projectName, rank: 4, shortens: shortestText },
      { heading: "CALLS", value: ({ calls }) => grouped(Number(calls)), rank: 2 },
      {
        heading: "LIMIT",
        value: ({ usageLimit }) => (usageLimit === undefined ? "unlimited" : grouped(Number(usageLimit))),
        rank: 5,
      },
    ],
    usage,
  );
}
