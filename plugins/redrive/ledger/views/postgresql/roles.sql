-- Role redrive_reviewer: people who decide. They read everything and write nothing but their decisions, also standing
-- ones, and how far they are with a failure; triggers sign them with their login. Grant it with: grant redrive_reviewer to ana;
do $$
begin
    if to_regrole('redrive_reviewer') is null then
        begin
            create role redrive_reviewer nologin;
        exception
            when insufficient_privilege then
                raise notice 'role redrive_reviewer was not created: % may not create roles; have it created, then run redrive db upgrade again', current_user;
                return;
            when duplicate_object or unique_violation then
                null;  -- another database of this cluster was upgraded at the same moment
        end;
    end if;
    grant usage on schema redrive to redrive_reviewer;
    grant select on all tables in schema redrive to redrive_reviewer;
    -- a file may say more than reviewers should know, such as Spark's properties
    revoke all on redrive.configurations from redrive_reviewer;
    grant update (decision, decided_by, note, corrected_body, corrected_headers, approved_by)
    on redrive.escalated_messages to redrive_reviewer;
    grant insert (route, group_id, decision, decided_by, note, until_at), update (approved_by, revoked_at, revoked_by)
    on redrive.standing_decisions to redrive_reviewer;
    grant usage on sequence redrive.standing_decisions_standing_id_seq to redrive_reviewer;
    grant insert (route, group_id, status, owner, ticket, ignored_until_at, written_by),
    update (status, owner, ticket, ignored_until_at, written_by) on redrive.failure_issues to redrive_reviewer;
    grant insert (route, group_id, written_by, text) on redrive.issue_comments to redrive_reviewer;
    grant usage on sequence redrive.issue_comments_comment_id_seq to redrive_reviewer;
    grant insert (ruling, group_id, other_group_id, words, decided_by, note), update (revoked_at, revoked_by)
    on redrive.group_rulings to redrive_reviewer;
    grant usage on sequence redrive.group_rulings_ruling_id_seq to redrive_reviewer;
end
$$
