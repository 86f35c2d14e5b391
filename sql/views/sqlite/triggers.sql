-- What people do to a review row by plain UPDATE, made whole: the status, the audit trail; and what can't be decided any
-- more is refused at once. The triggers act on columns that an UPDATE names, whether or not it changes them: deciding
-- the same again after a refusal is a new decision. Where the machine closes a row it sets a new status itself.
drop trigger if exists escalated_messages_refuse
--;
create trigger escalated_messages_refuse
before update of decision, corrected_body on escalated_messages
when old.applied_at is not null or old.status = 'applied'
begin
    select raise(abort, 'this escalation was applied already; a message that fails again gets a new row');
end
--;
drop trigger if exists escalated_messages_too_late
--;
create trigger escalated_messages_too_late
before update of decision, corrected_body on escalated_messages
when
    old.status = 'decided'
    and new.status not in ('applied', 'refused', 'reopened')
    and exists (select 1 from messages where messages.message_id = old.message_id and messages.state <> 'escalated')
begin
    select raise(abort, 'too late: this decision was taken up already');
end
--;
drop trigger if exists escalated_messages_decide
--;
create trigger escalated_messages_decide
after update of decision, corrected_body on escalated_messages
when
    new.decision is not null
    and (new.status = old.status or new.status not in ('applied', 'refused', 'reopened'))
begin
    update escalated_messages
    set
        status = 'decided',
        refusal = null,
        decided_at = coalesce(
            case when new.decided_at is not old.decided_at then new.decided_at end,
            strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'
        ),
        -- a second person approved what was decided then, not what is decided now
        approved_by = case when new.approved_by is not old.approved_by then new.approved_by end
    where escalation_id = new.escalation_id;
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.decided_by, 'decide ' || new.decision,
        new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_undecide
--;
create trigger escalated_messages_undecide
after update of decision, corrected_body on escalated_messages
when new.decision is null and new.status = 'decided' and old.status = 'decided'
begin
    update escalated_messages
    set status = 'open', decided_at = null, approved_by = null
    where escalation_id = new.escalation_id;
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, coalesce(new.decided_by, old.decided_by, '?'),
        'undecide ' || old.decision, new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_approve
--;
create trigger escalated_messages_approve
after update of approved_by on escalated_messages
when new.approved_by is not null and new.approved_by is not old.approved_by
begin
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.approved_by,
        'approve ' || coalesce(new.decision, 'nothing'), new.message_id, new.note
    );
end
