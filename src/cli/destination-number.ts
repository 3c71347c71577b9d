/** phoneproof number: the numbers that receive SMS. */

import {
  type DestinationNumber,
  DestinationNumberService,
} from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import { requirePart } from "./cli-error.ts";
import type { CliCommand } from "./command.ts";
import { fields, localTimeWithZone, table } from "./layout.ts";
import { environmentOption, nonEmpty } from "./option-values.ts";
import type { Session } from "./session.ts";
import { allNumbers } from "./whole-lists.ts";
import {
  dateOf,
  type EnvironmentWord,
  environmentField,
  environmentOf,
  environmentWord,
  isoTime,
} from "./words.ts";

export function addDestinationNumberCommands(program: CliCommand): void {
  const group = program
    .group("number", "Add, list and remove the numbers that receive SMS.")
    .examples(
      ["a number for every project", "number add 1666-0000 --environment live"],
      ["all numbers", "number list"],
    );

  group
    .command("add")
    .description(
      "Add a number that receives SMS: for one project, or shared by all projects without their own.",
    )
    .usage("NUMBER --environment live|test [options]")
    .argument("<number>", "as a handset dials it: 3 to 20 digits and #; hyphens, spaces and +82 are accepted")
    .addOption(environmentOption("the environment it serves").makeOptionMandatory())
    .option("--project <id>", "reserve it for one project, prj_…", nonEmpty)
    .examples(
      ["a number for every project", "number add 1666-0000 --environment live"],
      [
        "a number of one project's own",
        "number add '#0000' --environment test --project prj_01kaex4mpyf2xbtyt1s6vdr4e9",
      ],
    )
    .does<{ environment: EnvironmentWord; project?: string }>(
      async (session, { environment, project }, number) => {
        const answer = await session.client.call(DestinationNumberService.method.addDestinationNumber, {
          number,
          environment: environmentOf[environment],
          projectId: project ?? "",
        });
        showNumber(session, answer.destinationNumber);
      },
    );

  group
    .command("list")
    .description("List the numbers in use, oldest first.")
    .addOption(environmentOption("only this environment's"))
    .option("--project <id>", "only the project's own, prj_…", nonEmpty)
    .examples(["all numbers", "number list"], ["numbers for real SMS", "number list --environment live"])
    .does<{ environment?: EnvironmentWord; project?: string }>(async (session, { environment, project }) => {
      const numbers = await allNumbers(session.client, {
        projectId: project ?? "",
        ...environmentField(environment),
      });
      session.answer({ numbers: numbers.map(numberJson) }, () => numberTable(numbers));
    });

  group
    .command("remove")
    .description("Stop using a number for new verifications. Pending ones still work.")
    .argument("<number>", "the number, in any format that add accepts")
    .examples(["a number that is no longer needed", "number remove 1666-0000"])
    .does(async (session, _options, number) => {
      const answer = await session.client.call(DestinationNumberService.method.removeDestinationNumber, {
        number,
      });
      showNumber(session, answer.destinationNumber, "removed: it takes no new verifications");
    });
}

function numberJson(number: DestinationNumber) {
  return {
    number: number.number,
    environment: environmentWord(number.environment),
    project_id: number.projectId || null,
    created_at: isoTime(number.createdAt),
  };
}

/** `state` is shown as the number's state, unless the number was just added. */
function showNumber(session: Session, answered: DestinationNumber | undefined, state?: string): void {
  const number = requirePart(answered, "a number");
  session.answer(numberJson(number), () =>
    fields([
      ["number", number.number],
      ["environment", environmentWord(number.environment)],
      ["project", number.projectId || "shared"],
      ["added", localTimeWithZone(dateOf(number.createdAt))],
      ...(state === undefined ? [] : [["state", state] as const]),
    ]),
  );
}

function numberTable(numbers: readonly DestinationNumber[]): string {
  if (numbers.length === 0) return "No numbers yet: phoneproof number add NUMBER --environment test";
  return table(
    [
      { heading: "NUMBER", value: ({ number }) => number, rank: 1 },
      { heading: "ENV", value: ({ environment }) => environmentWord(environment) ?? "-", rank: 2 },
      { heading: "PROJECT", value: ({ projectId }) => projectId || "shared", rank: 3 },
      { heading: "ADDED", value: ({ createdAt }) => dateOf(createdAt), rank: 4 },
    ],
    numbers,
  );
}
