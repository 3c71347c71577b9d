import { expect, test } from "vitest";
import { type GrpcSecurity, welcome } from "../../src/welcome.ts";

const grpc = "127.0.0.1:50051";
const addresses = { http: "http://localhost:8080", grpc, ops: "127.0.0.1:9464" };

function welcomeText(grpcSecurity: GrpcSecurity, address = grpc): string {
  return welcome({ ...addresses, grpc: address }, { testKey: undefined, grpcSecurity, dataDir: ".data" });
}

test("the printed command has no --address if the gRPC address is the default", () => {
  expect(welcomeText("plaintext")).toContain("    npx phoneproof project list\n");
});

test("the printed command names any other address", () => {
  expect(welcomeText("plaintext", "127.0.0.1:7")).toContain(
    "npx phoneproof --address 127.0.0.1:7 project list\n",
  );
});

test("an IPv6 address is quoted in what is to be typed: zsh would look for files that its brackets stand for", () => {
  const text = welcome(
    { http: "http://[2001:db8::1]:8080", grpc: "[::1]:50051", ops: "[::1]:9464" },
    { testKey: "pp_test_46guCPufXvNhcydoEI8OH6MmdcXG3dOR27ItIa", grpcSecurity: "TLS", dataDir: ".data" },
  );
  expect(text).toContain("curl -sS 'http://[2001:db8::1]:8080/v1/verifications' \\\n");
  expect(text).toContain("npx phoneproof --address 'https://[::1]:50051' sms send");
  expect(text).toContain("    gRPC        https://[::1]:50051\n");
});

test.for([
  "TLS",
  "mutual TLS",
] as const)("with %s the printed command uses https://, followed by the settings it may need", (security) => {
  const text = welcomeText(security);
  expect(text).toContain(`npx phoneproof --address https://${grpc} project list\n`);
  expect(text).toContain("PHONEPROOF_TLS_CA");
  expect(text.includes("PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY")).toBe(security === "mutual TLS");
});

test.for([
  ".data",
  "/var/lib/phoneproof/data",
])("the command that sends the SMS is split for 80 columns so that a shell can run it, with DATA_DIR %s", (dataDir) => {
  const testKey = "pp_test_46guCPufXvNhcydoEI8OH6MmdcXG3dOR27ItIa";
  const lines = welcome(addresses, { testKey, grpcSecurity: "plaintext", dataDir }).split("\n");
  const at = lines.findIndex((line) => line.includes("npx phoneproof sms send"));
  const typed = lines.slice(at, at + 2);
  for (const line of typed) expect(line.length).toBeLessThanOrEqual(80);
  const prefix = dataDir === ".data" ? "" : `DATA_DIR=${dataDir} `;
  expect(typed.map((line) => line.trim())).toEqual([
    `${prefix}npx phoneproof sms send \\`,
    '--to DESTINATION --from 01012345678 --carrier SKT --text "SMS_TEXT"',
  ]);
});
