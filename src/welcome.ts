/** The text for a person who typed `npm start`. */

export interface Addresses {
  readonly http: string;
  readonly grpc: string;
  readonly ops: string;
}

/** What the gRPC server requires of its clients' connections. */
export type GrpcSecurity = "plaintext" | "TLS" | "mutual TLS";

/** Where the command looks for the service and its admin token by default. */
const defaults = { grpc: "127.0.0.1:50051", dataDir: ".data" };

export function welcome(
  addresses: Addresses,
  options: {
    /** Created at this start; undefined at later starts, when the service no longer knows it. */
    readonly testKey: string | undefined;
    readonly grpcSecurity: GrpcSecurity;
    readonly dataDir: string;
  },
): string {
  const { testKey, grpcSecurity, dataDir } = options;
  const grpc = grpcSecurity === "plaintext" ? addresses.grpc : `https://${addresses.grpc}`;
  const command =
    (dataDir === defaults.dataDir ? "" : `DATA_DIR=${shellWord(dataDir)} `) +
    "npx phoneproof" +
    (grpc === defaults.grpc ? "" : ` --address ${shellWord(grpc)}`);
  const lines = [
    "",
    "  phoneproof is running",
    "",
    `    merchants   ${addresses.http}`,
    `    reference   ${addresses.http}/docs`,
    `    gRPC        ${grpc}`,
    `    operations  http://${addresses.ops}/readyz`,
    `    data        ${dataDir}`,
    "",
  ];
  if (testKey === undefined) {
    lines.push(
      "  Keys from earlier starts still work. To create another:",
      "",
      `    ${command} project list`,
      ...commandLines(`${command} key create`, "--project ID --environment test"),
    );
  } else {
    lines.push(
      '  A project "Demo" was created for you. Its test key, shown only once:',
      "",
      `    ${testKey}`,
      "",
      "  Create a verification:",
      "",
      `    curl -sS ${shellWord(`${addresses.http}/v1/verifications`)} \\`,
      `      -H 'Authorization: Bearer ${testKey}' \\`,
      `      -H "Idempotency-Key: try-$(date +%s)" \\`,
      "      -H 'Content-Type: application/json' \\",
      "      -d '{}'",
      "",
      "  Send its sms_text to its destination, as the person's phone would:",
      "",
      ...commandLines(
        `${command} sms send`,
        '--to DESTINATION --from 01012345678 --carrier SKT --text "SMS_TEXT"',
      ),
    );
  }
  if (grpcSecurity !== "plaintext") {
    lines.push(
      "",
      "  If a private CA signed the service's certificate, set PHONEPROOF_TLS_CA to that CA's certificate file.",
    );
  }
  if (grpcSecurity === "mutual TLS") {
    lines.push("  Set PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY to the command's own certificate and key.");
  }
  lines.push("", "  Ctrl-C stops it.", "", "");
  return lines.join("\n");
}

/** One line, or two where a terminal of 80 columns would break it. */
function commandLines(command: string, options: string): string[] {
  const line = `    ${command} ${options}`;
  return line.length <= 80 ? [line] : [`    ${command} \\`, `      ${options}`];
}

/** Quoted where a shell would not take it as it is, as zsh does not take the brackets of an IPv6 address. */
function shellWord(text: string): string {
  return /^[\w./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
