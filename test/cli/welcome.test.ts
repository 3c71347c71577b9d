import { expect, test } from "vitest";
import { type GrpcSecurity, welcome } from "../../src/welcome.ts";

const grpc = "127.0.0.1:50051";
const addresses = { http: "http://localhost:8080", grpc, ops: "127.0.0.1:9464" };

function said(grpcSecurity: GrpcSecurity, address = grpc): string {
  return welcome({ ...addresses, grpc: address }, { testKey: undefined, grpcSecurity, dataDir: ".data" });
}

test("the printed command finds the service without its address where it is the usual one", () => {
  expect(said("plaintext")).toContain("    npx phoneproof project list\n");
});

test("it names another address", () => {
  expect(said("plaintext", "127.0.0.1:7")).toContain("npx phoneproof --address 127.0.0.1:7 project list\n");
});

test.for([
  "TLS",
  "mutual TLS",
] as const)("with %s it says https://, and what the command may need", (security) => {
  const text = said(security);
  expect(text).toContain(`npx phoneproof --address https://${grpc} project list\n`);
  expect(text).toContain("PHONEPROOF_TLS_CA");
  expect(text.includes("PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY")).toBe(security === "mutual TLS");
});
