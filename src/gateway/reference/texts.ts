import type { ContractCode } from "../../failures.ts";
import type { apiError, createdVerification, createVerificationBody } from "../schemas.ts";

/** A text with `code` and [links](address), marked as in Markdown. */
export type Prose = string;

type FieldsOf<Schema extends { readonly properties: object }> = Readonly<
  Record<keyof Schema["properties"], Prose>
>;

/** All text on the pages, in one language. What is sent over the wire is the same in every language. */
export interface ReferenceTexts {
  readonly language: "en" | "ko";
  readonly path: "/docs" | "/docs/ko";
  /** This language's own name, which the other language's page shows as a link. */
  readonly otherLanguage: string;
  readonly title: string;
  readonly introduction: readonly Prose[];
  readonly create: {
    readonly heading: string;
    /** The placeholder for the idempotency key. */
    readonly newKey: string;
    readonly about: Prose;
    readonly body: string;
    readonly answer: string;
  };
  readonly read: { readonly heading: string };
  readonly cancel: { readonly heading: string; readonly about: Prose };
  readonly headers: { readonly heading: string; readonly about: Prose };
  readonly webhooks: {
    readonly heading: string;
    readonly about: Prose;
    readonly event: Prose;
    readonly headers: Readonly<Record<"webhook-id" | "webhook-timestamp" | "webhook-signature", Prose>>;
    readonly signature: Prose;
  };
  readonly deprecated: {
    readonly heading: string;
    readonly about: Prose;
    /** `what` is a call, or a field of one; `since` and `sunset` are dates. */
    readonly entry: (what: string, since: string, sunset: string | null) => Prose;
    readonly instead: string;
  };
  readonly errors: {
    readonly heading: string;
    readonly all: string;
    readonly status: (status: number) => string;
    /** By code: its meaning, and advice where the meaning does not say it all. */
    readonly byCode: Readonly<Record<ContractCode, { readonly meaning: Prose; readonly advice?: Prose }>>;
  };
  readonly fields: {
    readonly request: FieldsOf<typeof createVerificationBody>;
    readonly verification: FieldsOf<typeof createdVerification>;
    readonly error: FieldsOf<(typeof apiError)["properties"]["error"]>;
  };
  readonly tables: {
    readonly field: string;
    readonly value: string;
    readonly meaning: string;
    readonly header: string;
    readonly status: string;
    readonly code: string;
    readonly message: string;
    readonly or: string;
    readonly atMost: (characters: number) => string;
    readonly byDefault: (value: Prose) => Prose;
  };
}
