/** The one kind of command everything here is made of: how it takes options, helps and complains. */

import { Command, type HelpContext, Option, type OptionValues } from "commander";
import { openSession, type Session } from "./session.ts";
import { Trouble, wrongUsage } from "./trouble.ts";

export interface GlobalOptions {
  readonly address?: string;
  readonly token?: string;
  readonly json?: boolean;
}

/**
 * `argument` is the command's only operand, empty where it takes none or an optional one was left out. `optionOf` answers the option
 * that a request's field is given by, where it is given by one.
 */
type Action<Options> = (
  session: Session,
  options: Options,
  argument: string,
  optionOf: (field: string) => string | undefined,
) => Promise<void>;

/** Below what is a command's own, at every level. */
const globalOptionsHelp = `
Everywhere:
  --json                 print JSON, for programs
  --address <host:port>  the service's gRPC address
                         (else PHONEPROOF_ADDRESS, else this machine's)
  --token <token>        an admin token
                         (else PHONEPROOF_TOKEN, else this machine's)
  -h, --help             show this help`;

/** A terminal's, by old custom. Commander breaks the lines of its own lists for it, and nothing that is added to them. */
const helpColumns = 80;

/** A shell reads them as one line. They begin with an option, or with the command that a pipe leads to. */
function commandLines(line: string): string {
  const lines: string[] = [];
  let current = "  $ phoneproof";
  for (const part of line.split(/ (?=--|\| )/)) {
    const longer = `${current} ${part}`;
    // Two columns are for the mark that the line goes on.
    if (longer.length <= helpColumns - 2) {
      current = longer;
    } else {
      lines.push(`${current} \\`);
      current = `      ${part}`;
    }
  }
  return [...lines, current].join("\n");
}

/** What Commander has and its types do not tell. */
interface UntypedCommand {
  /** Refuses it, with the nearest that there is. */
  unknownOption(flag: string): never;
}

export class CliCommand extends Command {
  constructor(name?: string) {
    super(name);
    // Every level has the global options itself, and each level's help shows them.
    this.enablePositionalOptions();
    this.exitOverride();
    this.addHelpOption(new Option("-h, --help").hideHelp());
  }

  override createCommand(name?: string): CliCommand {
    return new CliCommand(name);
  }

  /** A command that only has others below it. */
  group(name: string, description: string): CliCommand {
    return this.command(name)
      .description(description)
      .usage("<command> [options]")
      .helpCommand("help [command]", "Show the help of a command.")
      .takesGlobalOptions();
  }

  /** Commander's own `help` looks at one name only, and knows none of those below a group. */
  helpsAtEveryLevel(): this {
    this.helpCommand(false);
    this.command("help [command...]")
      .description("Show the help of a command.")
      .usage("[command...]")
      .takesGlobalOptions()
      .action(async (names: readonly string[]) => {
        await this.parseAsync([...names, "--help"], { from: "user" });
      });
    return this;
  }

  takesGlobalOptions(): this {
    for (const flags of ["--json", "--address <host:port>", "--token <token>"]) {
      this.addOption(new Option(flags).hideHelp());
    }
    return this.addHelpText("after", globalOptionsHelp);
  }

  /** `[what it is for, the command without its name]`, as a person would type it. */
  examples(...examples: readonly (readonly [purpose: string, line: string])[]): this {
    const lines = examples.map(([purpose, line]) => `  # ${purpose}\n${commandLines(line)}`);
    return this.addHelpText("after", `\nExamples:\n${lines.join("\n")}`);
  }

  /** What the command does, with a connection that is closed when it is done. Comes after its options. */
  does<Options extends OptionValues = OptionValues>(action: Action<Options>): this {
    this.takesGlobalOptions();
    return this.action(async () => {
      const [operand] = this.registeredArguments;
      if (this.args[0] === "") this.error(`argument '${operand?.name()}' is empty`);
      const session = openSession(this.globalOptions());
      const optionOf = (field: string) => this.#optionOf(field);
      try {
        await action(session, this.opts<Options>(), this.args[0] ?? "", optionOf);
      } catch (error) {
        if (error instanceof Trouble) error.writtenAs = optionOf;
        throw error;
      } finally {
        session.close();
      }
    });
  }

  /** The option that a request's field is given by: `--validity` for `validity_seconds`, `--number` for `numbers[1]`. */
  #optionOf(field: string): string | undefined {
    const words = field.replace(/\[\d+\]$/, "").split("_");
    for (let count = words.length; count > 0; count--) {
      const flag = `--${words.slice(0, count).join("-")}`;
      const option = this.options.find(({ long }) => long === flag || `${long}s` === flag);
      if (option?.long) return option.long;
    }
    return undefined;
  }

  /**
   * Commander takes whatever follows for the value of an option. Where that is an option of this very command, the value
   * was forgotten, or was an empty variable of a script: a project named `--json` is what nobody meant.
   */
  override parseOptions(args: string[]): ReturnType<Command["parseOptions"]> {
    const known = [...this.options, this.createOption("-h, --help")];
    const optionAt = (index: number) =>
      known.find(({ short, long }) => args[index] !== undefined && [short, long].includes(args[index]));
    for (let index = 0; index < args.length; index++) {
      const arg = args[index] as string;
      // What is behind the name of a command is read by that command.
      if (arg === "--" || (this.commands.length > 0 && !arg.startsWith("-"))) break;
      const option = optionAt(index);
      if (option?.required !== true) continue;
      index += 1;
      if (optionAt(index) !== undefined) {
        this.error(
          `option '${option.flags}' argument missing before ${args[index]}; for that very text write ${option.long}=${args[index]}`,
        );
      }
    }
    const parsed = super.parseOptions(args);
    const [unknown] = parsed.unknown;
    const wantsHelp = parsed.unknown.some((arg) => arg === "-h" || arg === "--help");
    // Commander would first miss those that have to be there, of which this may be one with a typo.
    if (this.commands.length === 0 && unknown?.startsWith("-") && !wantsHelp) {
      this.unknownOption(unknown);
    }
    return parsed;
  }

  /** Commander suggests what its help shows, which has the global options apart. */
  unknownOption(flag: string): never {
    for (const option of this.options) option.hideHelp(false);
    return (Command.prototype as unknown as UntypedCommand).unknownOption.call(this, flag);
  }

  /** The global options wherever they stood; the one nearest to the command's own counts. */
  globalOptions(): GlobalOptions {
    const above = this.parent instanceof CliCommand ? this.parent.globalOptions() : {};
    return { ...above, ...this.opts<GlobalOptions>() };
  }

  override error(message: string): never {
    const [first = "", hint] = message.replace(/^error: /, "").split("\n");
    const said = [first.replace(/\.$/, ""), hint].filter((part) => part !== undefined).join(" ");
    const path = this.#path();
    throw wrongUsage(`${path === "" ? "" : `${path}: `}${said}; see ${this.#helpLine()}`);
  }

  override help(context?: HelpContext | ((text: string) => string)): never {
    // Commander's way of saying that the command below is missing. To a person the bare command shows what there is.
    const isForPrograms = this.globalOptions().json === true;
    if (typeof context === "object" && context.error && (this.parent !== null || isForPrograms)) {
      this.#refuseUnknown();
      const names = this.commands.map((command) => command.name()).join(", ");
      this.error(`missing command, one of ${names}`);
    }
    return super.help(context as HelpContext);
  }

  override outputHelp(context?: HelpContext | ((text: string) => string)): void {
    this.#refuseUnknown();
    super.outputHelp(context as HelpContext);
  }

  /** Commander would help, or miss a command, before it looks whether there is the one that is named. */
  #refuseUnknown(): void {
    const named = this.args.find((arg) => arg !== "help");
    if (this.commands.length > 0 && named !== undefined && !named.startsWith("-")) {
      this.parse([named], { from: "user" });
    }
  }

  #path(): string {
    return this.parent instanceof CliCommand ? `${this.parent.#path()} ${this.name()}`.trim() : "";
  }

  #helpLine(): string {
    return ["phoneproof", this.#path(), "--help"].filter((part) => part !== "").join(" ");
  }
}
