#!/usr/bin/env escript
%%! +S 2
%% The question of recovery.py, asked of Erlang's supervisor. Prints "wall_s cpu_s", then figures.
-mode(compile).
-export([init/1, start_victim/1, start_sibling/0]).

main([Siblings, Crashes]) ->
    logger:set_primary_config(level, none),
    process_flag(trap_exit, true),
    {ok, _} = supervisor:start_link(?MODULE, {list_to_integer(Siblings), self()}),
    First = receive {started, Pid} -> Pid end,
    erlang:garbage_collect(),
    {Cpu0, _} = statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    {Times, _} = lists:mapfoldl(fun crash/2, First, lists:seq(1, list_to_integer(Crashes))),
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = statistics(runtime),
    io:format("~f ~f~n", [Wall / 1.0e9, (Cpu - Cpu0) / 1.0e3]),
    Sorted = lists:sort(Times),
    [io:format("~s ~f~n", [Name, lists:nth(max(1, round(length(Sorted) * Part)), Sorted) / 1.0e6])
     || {Name, Part} <- [{"p50_ms", 0.5}, {"p99_ms", 0.99}]].

crash(_, Victim) ->
    Begin = erlang:monotonic_time(nanosecond),
    Victim ! crash,
    receive {started, Next} ->
        Next ! {self(), ask},
        receive {Next, answer} -> {erlang:monotonic_time(nanosecond) - Begin, Next} end
    end.

init({Siblings, Owner}) ->
    Flags = #{strategy => one_for_one, intensity => 1000000, period => 1},
    Victim = #{id => victim, start => {?MODULE, start_victim, [Owner]}},
    Others = [#{id => N, start => {?MODULE, start_sibling, []}, shutdown => brutal_kill}
              || N <- lists:seq(1, Siblings)],
    {ok, {Flags, [Victim | Others]}}.

start_sibling() -> {ok, spawn_link(fun() -> receive stop -> ok end end)}.

start_victim(Owner) ->
    {ok, spawn_link(fun() -> Owner ! {started, self()}, victim() end)}.

victim() ->
    receive
        {From, ask} -> From ! {self(), answer}, victim();
        crash -> exit(crash)
    end.
