-- The breaker of each destination that a route has sent to: how many it allows at its stage, and of the attempts that
-- count for that stage how many were sent, stayed away and came back. All that is read of an
-- attempt is in the index of its stage, as in group_state.
create view destination_state as
select
    breakers.route,
    breakers.destination,
    breakers.stage,
    breakers.allowed,
    count(attempts.destination_stage) as sent,
    count(case when attempts.outcome in ('presumed', 'confirmed') then 1 end) as stayed,
    count(case when attempts.outcome = 'returned' then 1 end) as returned,
    breakers.trips,
    breakers.cool_down_until,
    breakers.reason,
    breakers.stage_at,
    breakers.began_at
from breakers
left join redelivery_attempts as attempts
    on
        attempts.destination_stage = breakers.stage_id
        and coalesce(attempts.return_kind, 'dead_letter') = 'dead_letter'
where breakers.destination is not null
group by breakers.breaker_id
