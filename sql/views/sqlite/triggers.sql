-- A decision made by plain UPDATE moves the row to 'decided'; what can't be decided any more is refused at once.
drop trigger if exists escalated_messages_refuse
--;
create trigger escalated_messages_refuse
before update of decision, corrected_body on escalated_messages
when old.status = 'applied' and new.status = 'applied'
begin
    select raise(abort, 'this escalation was applied already; a message that fails again gets a new row');
end
--;
drop trigger if exists escalated_messages_decide
--;
create trigger escalated_messages_decide
after update of decision on escalated_messages
when new.decision is not null and new.status in ('open', 'refused', 'reopened')
begin
    update escalated_messages
    set
        status = 'decided',
        refusal = null,
        decided_at = coalesce(case when new.decided_at is not old.decided_at then new.decided_at end, strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
    where escalation_id = new.escalation_id;
    insert into audit_events (at, route, actor, action, to_state, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.decided_by, 'decide ' || new.decision, null,
        new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_undecide
--;
create trigger escalated_messages_undecide
after update of decision on escalated_messages
when new.decision is null and new.status = 'decided'
begin
    update escalated_messages set status = 'open', decided_at = null where escalation_id = new.escalation_id;
end
