/** The command class that all commands here use: options, help and usage errors. */

import { Command, type HelpContext, Option, type OptionValues } from "commander";
import { CliError, wrongUsage } from "./cli-error.ts";
import { noteCommand } from "./closed-output.ts";
import { type GlobalOptions, openSession, type Session } from "./session.ts";

/**
 * `argument` is the command's only operand, empty if it takes none or an optional one was left out. `optionOf` returns the
 * option that sets a field of the request, if there is one.
 */
type Action<Options> = (
  session: Session,
  options: Options,
  argument: string,
  optionOf: (field: string) => string | undefined,
) => Promise<void>;

/** Shown below a command's own help, at every level. */
const globalOptionsHelp = `
Global options:
  --json                 print JSON, for programs
  --address <host:port>  the service's gRPC address
                         (default: PHONEPROOF_ADDRESS, else this machine's)
  --token <token>        an admin token, or a merchant's API key
                         (default: PHONEPROOF_TOKEN, else this machine's)
  -h, --help             show this help`;

/** The traditional width of a terminal. Commander wraps its own lists to it, but not texts that are added to the help. */
const helpColumns = 80;

/** Breaks an example into lines that a shell reads as one. A line breaks before an option, or before a pipe. */
function commandLines(line: string): string {
  const lines: string[] = [];
  let current = "  $ phoneproof";
  for (const part of line.split(/ (?=--|\| )/)) {
    const longer = `${current} ${part}`;
    // Two columns are reserved for ` \`, which marks a continued line.
    if (longer.length <= helpColumns - 2) {
      current = longer;
    } else {
      lines.push(`${current} \\`);
      current = `      ${part}`;
    }
  }
  return [...lines, current].join("\n");
}

/** A method of Commander that its type declarations omit. */
interface UntypedCommand {
  /** Fails with the most similar known option as a suggestion. */
  unknownOption(flag: string): never;
}

export class CliCommand extends Command {
  constructor(name?: string) {
    super(name);
    // Every level accepts the global options itself, and every level's help lists them.
    this.enablePositionalOptions();
    this.exitOverride();
    this.addHelpOption(new Option("-h, --help").hideHelp());
  }

  override createCommand(name?: string): CliCommand {
    return new CliCommand(name);
  }

  /** A command that only contains subcommands. */
  group(name: string, description: string): CliCommand {
    return this.command(name)
      .description(description)
      .usage("<command> [options]")
      .helpCommand("help [command]", "Show the help of a command.")
      .takesGlobalOptions();
  }

  /** Replaces Commander's own `help`, which takes a single name and so cannot show the help of a group's subcommands. */
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

  /** `[purpose, command without the program's name]`, as a person would type it. */
  examples(...examples: readonly (readonly [purpose: string, line: string])[]): this {
    const lines = examples.map(([purpose, line]) => `  # ${purpose}\n${commandLines(line)}`);
    return this.addHelpText("after", `\nExamples:\n${lines.join("\n")}`);
  }

  /** Sets the command's action. It gets a connection that is closed afterwards. Call after the options are declared. */
  does<Options extends OptionValues = OptionValues>(action: Action<Options>): this {
    this.takesGlobalOptions();
    return this.action(async () => {
      const [operand] = this.registeredArguments;
      if (this.args[0] === "") this.error(`argument '${operand?.name()}' is empty`);
      noteCommand(this.name());
      const session = openSession(this.globalOptions());
      const optionOf = (field: string) => this.#optionOf(field);
      try {
        await action(session, this.opts<Options>(), this.args[0] ?? "", optionOf);
      } catch (error) {
        if (error instanceof CliError) error.writtenAs = optionOf;
        throw error;
      } finally {
        session.close();
      }
    });
  }

  /** The option that sets a field of the request: `--validity` for `validity_seconds`, `--number` for `numbers[1]`. */
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
   * Commander takes any next argument as an option's value. If that is itself an option of this command, the value was
   * forgotten or was an empty variable of a script: nobody means a project named `--json`.
   */
  override parseOptions(args: string[]): ReturnType<Command["parseOptions"]> {
    const known = [...this.options, this.createOption("-h, --help")];
    const optionAt = (index: number) =>
      known.find(({ short, long }) => args[index] !== undefined && [short, long].includes(args[index]));
    for (let index = 0; index < args.length; index++) {
      const arg = args[index] as string;
      // What follows a subcommand's name is parsed by that subcommand.
      if (arg === "--" || (this.commands.length > 0 && !arg.startsWith("-"))) break;
      const option = optionAt(index);
      if (option?.required !== true) continue;
      index += 1;
      if (optionAt(index) !== undefined) {
        this.error(
          `option '${option.flags}' argument missing before ${args[index]}; to use that text as the value, write ${option.long}=${args[index]}`,
        );
      }
    }
    const parsed = super.parseOptions(args);
    const [unknown] = parsed.unknown;
    const wantsHelp = parsed.unknown.some((arg) => arg === "-h" || arg === "--help");
    // Commander would first report missing mandatory options, although the unknown option may be one of them misspelled.
    if (this.commands.length === 0 && unknown?.startsWith("-") && !wantsHelp) {
      this.unknownOption(unknown);
    }
    return parsed;
  }

  /** Commander suggests only options that its help lists, and the global options are hidden there. */
  unknownOption(flag: string): never {
    for (const option of this.options) option.hideHelp(false);
    return (Command.prototype as unknown as UntypedCommand).unknownOption.call(this, flag);
  }

  /** The global options from all levels; the innermost level wins. */
  globalOptions(): GlobalOptions {
    const above = this.parent instanceof CliCommand ? this.parent.globalOptions() : {};
    return { ...above, ...this.opts<GlobalOptions>() };
  }

  override error(message: string): never {
    const [first = "", hint] = message.replace(/^error: /, "").split("\n");
    const sentence = [first.replace(/\.$/, ""), hint].filter((part) => part !== undefined).join(" ");
    const path = this.#path();
    throw wrongUsage(`${path === "" ? "" : `${path}: `}${sentence}; see ${this.#helpLine()}`);
  }

  override help(context?: HelpContext | ((text: string) => string)): never {
    // Commander calls this with `error` if the subcommand is missing. For a person, the bare `phoneproof` shows the help
    // instead.
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

  /** Without this, Commander would show the help or report a missing command before checking that the named command exists. */
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
