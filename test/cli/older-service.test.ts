import { create, toBinary } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import {
  CreateServiceTokenResponseSchema,
  ServiceTokenScope,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import {
  GetVerificationResponseSchema,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { run } from "./command.ts";
import { type GrpcPeer, refusalHeaders, startVersion, unknownMethodRequestId } from "./grpc-peer.ts";

const towardsPeer = ({ address }: GrpcPeer) => ({ PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" });
const older = (what: string) =>
  expect.stringMatching(
    new RegExp(`the service at \\S+ is an older version than this command, and ${what}: upgrade it`),
  );

test.for([
  { what: "that leaves the name of a new token out is named", named: ["--name", "dashboard"] },
  { what: "creates a token without a name like any other", named: [] },
])("a service older than the command $what", async ({ named }) => {
  const made = create(CreateServiceTokenResponseSchema, {
    serviceToken: { id: "tok_01kaex4mpyf2xbtyt1s6vdr4e9", scope: ServiceTokenScope.READ },
    secret: "pp_svc_x",
  });
  const peer = await startVersion({
    "phoneproof.v1.ServiceTokenService/CreateServiceToken": toBinary(CreateServiceTokenResponseSchema, made),
  });
  const command = ["token", "create", "--scope", "read", ...named];
  const said = older("created the token without its name");

  const shown = await run(command, towardsPeer(peer));
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringContaining("pp_svc_x") });
  expect(shown.stderr).toEqual(named.length > 0 ? said : "");

  const { code, stdout, stderr } = await run([...command, "--json"], towardsPeer(peer));
  expect({ code, made: JSON.parse(stdout) }).toMatchObject({
    code: 0,
    made: { name: "", token: "pp_svc_x" },
  });
  expect(stderr && JSON.parse(stderr)).toEqual(
    named.length > 0 ? { error: expect.objectContaining({ code: "unimplemented", message: said }) } : "",
  );
});

const verification = { id: "vrf_01kaex4mpyf2xbtyt1s6vdr4e9", status: VerificationStatus.PENDING };
const getVerification = {
  "phoneproof.v1.VerificationService/GetVerification": toBinary(
    GetVerificationResponseSchema,
    create(GetVerificationResponseSchema, { verification }),
  ),
};
const showCommand = ["verification", "show", verification.id, "--json"];

test("a service older than histories shows its verifications, and is named", async () => {
  const peer = await startVersion({
    ...getVerification,
    "phoneproof.v1.WebhookService/ListWebhookDeliveries": new Uint8Array(),
  });
  const { code, stdout, stderr } = await run(showCommand, towardsPeer(peer));
  expect({ code, shown: JSON.parse(stdout), said: JSON.parse(stderr) }).toMatchObject({
    code: 0,
    shown: { id: verification.id, status: "pending", history: null },
    said: {
      error: {
        code: "unimplemented",
        message: older("has no histories of verifications"),
        request_id: unknownMethodRequestId,
      },
    },
  });
});

test("a history that cannot be read for another reason is not the age of the service", async () => {
  const peer = await startVersion({
    ...getVerification,
    "phoneproof.v1.VerificationHistoryService/GetVerificationHistory": refusalHeaders(
      status.INTERNAL,
      "internal_error",
    ),
    "phoneproof.v1.WebhookService/ListWebhookDeliveries": new Uint8Array(),
  });
  const { code, stdout, stderr } = await run(showCommand, towardsPeer(peer));
  expect({ code, shown: JSON.parse(stdout), said: JSON.parse(stderr) }).toMatchObject({
    code: 1,
    shown: { id: verification.id, history: null },
    said: { error: { code: "internal_error" } },
  });
});

test("a service older than histories is not named to a token that could not read one", async () => {
  const peer = await startVersion({
    ...getVerification,
    "phoneproof.v1.WebhookService/ListWebhookDeliveries": refusalHeaders(
      status.PERMISSION_DENIED,
      "insufficient_scope",
    ),
  });
  const { code, stdout, stderr } = await run(showCommand, towardsPeer(peer));
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  expect(JSON.parse(stdout)).toMatchObject({ id: verification.id, status: "pending", history: null });
});
