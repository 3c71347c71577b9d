import type { CodeFormat, Project } from "../core/project.ts";

/** The columns of a project `p`, in the order `projectOf` reads. */
export const projectColumns = `
  p.id::text, p.name, p.code_format::text, p.code_length::int, p.validity_seconds, p.sms_template, p.parent_origin,
  p.return_url, p.usage_limit::float8, p.rate_limit_per_minute, p.suspended_at IS NOT NULL, p.created_at`;

export function projectOf(row: readonly unknown[], offset: number): Project {
  return {
    id: row[offset] as string,
    name: row[offset + 1] as string,
    codeFormat: row[offset + 2] as CodeFormat,
    codeLength: row[offset + 3] as number,
    validitySeconds: row[offset + 4] as number,
    smsTemplate: row[offset + 5] as string | null,
    parentOrigin: row[offset + 6] as string | null,
    returnUrl: row[offset + 7] as string | null,
    usageLimit: row[offset + 8] as number | null,
    rateLimitPerMinute: row[offset + 9] as number,
    suspended: row[offset + 10] as boolean,
    createdAt: row[offset + 11] as Date,
  };
}
